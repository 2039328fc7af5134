"""Solutions of the exercise on DeepSeek's indexer."""

from answers import right, wrong
from answers.indexed import by_entropies, by_kl_div, per_head, summed

right("ch17.indexer_loss", "cross-entropy minus entropy")(by_entropies)
right("ch17.indexer_loss", "torch's kl_div")(by_kl_div)
wrong("ch17.indexer_loss", "the sum over queries")(summed)
wrong("ch17.indexer_loss", "the mean of each head's own")(per_head)
