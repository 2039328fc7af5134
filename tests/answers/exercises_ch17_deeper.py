"""Solutions of the exercises on clustered attention and on dynamic convolution."""

from answers import right, wrong
from answers.clustered import by_clusters, by_means
from answers.dynamic_convolution import by_conv1d, by_shifts, detached, other_middle
from tested_transformer import attention

right("ch17.clustered_attention", "every query replaced by the mean of its cluster")(by_means)
right("ch17.clustered_attention", "one cluster after the other")(by_clusters)
right("ch17.dynamic_convolution", "shifted copies")(by_shifts)
right("ch17.dynamic_convolution", "torch's conv1d, token by token")(by_conv1d)
wrong("ch17.dynamic_convolution", "the weights are detached")(detached)
wrong("ch17.dynamic_convolution", "an even kernel is centered on the right")(other_middle)


@wrong("ch17.clustered_attention", "every query for itself")
def for_itself(query, key, value, clusters):
    return attention(query, key, value)


@wrong("ch17.clustered_attention", "the mean of the outputs")
def mean_of_outputs(query, key, value, clusters):
    """Attention first, the mean of a cluster afterward."""
    output = attention(query, key, value)
    same = (clusters[..., None] == clusters[..., None, :]).to(output.dtype)  # B H L L
    return same @ output / same.sum(-1, keepdim=True)
