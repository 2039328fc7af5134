"""Calls that look malformed and are served, each with the reason, and what nobody calls."""

LENIENT: dict[str, str] = {
    "token_slots.block_table = 10*": "it knows no pool, so that any block may be one; gather_pages checks",
    "*.position_ids = *throughout": "any integer is a position, one before the start too",
    "*.positions = *throughout": "any integer is a position, one before the start too",
    "*.query_ids = *throughout": "any integer is a position, one before the start too",
    "*.key_ids = *throughout": "any integer is a position, one before the start too",
    "shift_matrix.offset = *": "positions may be any integers, and so may their distance",
    "PositionScheme.*": "the base class leaves what it gets as it is, and looks at nothing",
    "*.embed.x = torch.float*": "the positions that are added take the dtype of the embeddings",
    "ALiBi.bias.query = torch.float*": "the bias comes in the dtype of the queries",
    "ALiBi.slopes.like = *": "like any pattern for a device: its own dtype and values say nothing",
    "*.key_lengths = 10[*][*]6 throughout": "a length beyond the last key masks no key",
    "DilatedBranch.selects.ids = *throughout": "a rule takes any integers for positions",
    "make_part.* = *throughout": "positions outside the sequence become none",
    "*.document_ids = *throughout": "documents may have any numbers: they are compared, no more",
    "padding_mask_from_tokens.*": "token IDs are compared with the ID of padding, no more",
    "*.padding.ids = *": "token IDs are compared with the ID of padding, no more",
    "lengths.ids = *throughout": "token IDs are compared with the ID of padding, no more",
    "Batch.* = 10[*][*]6 throughout": "a batch does not know the vocabulary; the model that reads it does",
    "*.*mask = two axes more": "that is the rank of the scores, and 1 stands for every sample and head",
    "*.bias = two axes more": "that is the rank of the scores, and 1 stands for every sample and head",
    "LanguageModel.forward.attention_mask = torch.int64": "0 and 1, as tokenizers give the mask",
    "RecurrentLanguageModel.forward.attention_mask = torch.int64": "0 and 1, as tokenizers give the mask",
    "Yoco.*.attention_mask = torch.int64": "0 and 1, as tokenizers give the mask",
    "RoFormer.encode.attention_mask = torch.int64": "0 and 1, as tokenizers give the mask",
    "attention.* = torch.float*": "bias and slopes may be more exact than the queries",
    "transformer_xl_attention.bias = torch.float*": "a bias may be more exact than the queries",
    "sink_attention.* = torch.float*": "bias, slopes and sinks may be more exact than the queries",
    "bspline_basis.x = torch.float*": "knots may be more exact than x",
    "bspline_basis.knots = torch.float*": "knots may be more exact than x",
    "fit_spline.knots = torch.float*": "knots may be more exact than x",
    "within_capacity.experts = 10?*6 throughout": "experts may have any numbers",
    "*_retention.log_decay = torch.float*": "decays may be more exact than the queries",
    "*_retention.state = torch.float*": "the state is kept in at least float32",
    "*indexed_attention.index_weights = torch.float*": "the indexer's weights may be of float32",
    "indexer_scores.weights = torch.float*": "the indexer's weights may be of float32",
    "lightning_indexer.weights = torch.float*": "the indexer's weights may be of float32",
    "indexer_loss.attention_weights = torch.float*": "the target is cast to the dtype of the scores",
    "XLNet.forward.attention_mask = torch.int64": "0 and 1, as tokenizers give the mask",
    "XLNet.forward.perm_mask = torch.float*": "0 and 1 in any dtype, as transformers has it",
    "XLNet.forward.target_mapping = torch.float*": "0 and 1 in any dtype, as transformers has it",
    "XLNet.forward.target_mapping = axis 1: *": "any number of tokens may be predicted",
    "XLNet.forward.token_type_ids = *throughout": "segments may have any numbers: they are compared, no more",
    "infini_attention.memory = torch.float*": "the memory is kept in at least float32",
    "infini_attention.normalizer = torch.float*": "the memory is kept in at least float32",
    "gated_retention.gate_logits = torch.float*": "gates may be more exact than the queries",
    "MultiHeadAttention.forward.bias = torch.float*": "a bias may be more exact than the queries",
    "attend.* = torch.float*": "scores are at least float32, whatever dtype the values have",
    "hard_attention.* = torch.float*": "scores are at least float32, whatever dtype the values have",
    "kernel_regression.value = torch.float*": "scores are at least float32, whatever the values have",
    "local_weights.* = torch.float*": "scores are at least float32, whatever dtype the centers have",
    "reinforce_loss.* = torch.float*": "scores are at least float32, whatever dtype the costs have",
    "batch_norm.* = torch.float*": "half precision goes with parameters and statistics in float32",
    "layer_norm.* = torch.float*": "half precision goes with parameters in float32",
    "rms_norm.weight = torch.float*": "half precision goes with parameters in float32",
    "Resi*.inputs.x = *": "the norm may be any function: it says which dtype and device it takes",
    "Residual.forward.x = *": "the norm may be any function: it says which dtype and device it takes",
    "*RotaryPositions.rotate.* = axis 1: *": "any number of heads can be rotated",
    "XPos.rotate.* = axis 1: *": "any number of heads can be rotated",
    "RelativePositions.bias.query = axis 1: *": "one table serves any number of heads",
    "ALiBi.bias.query = axis 3: *": "the bias does not depend on the head dimension",
    "T5Positions.bias.query = axis 3: *": "the bias does not depend on the head dimension",
    "AdditiveAttention.forward.value = axis 2: *": "values may have any dimension",
    "BilinearAttention.forward.value = axis 2: *": "values may have any dimension",
    "heat_map*.mask* = torch.float*": "0 and 1 are a mask in any dtype, as of a matrix by hand",
}

# For those who write Specs, and what hands its arguments on to the judge: the judge's tests check these.
# And what starts processes at each call: its own tests ask it.
UNASKED = ("specs", "reader.assertions", "homework.checks", "distributed.launch")

# Results and descriptions: the package makes them and hands them out.
RECORDS = set(
    "Assignment AttentionWeights Counted Counts DeepNormConstants Device Evaluation Generated "
    "Graphs GraphTokens History Hunt HuntVerdict NumberTranslation Marks MaskReport Mistake NumberPicture Pair PartMarks "
    "Partial Parts Picture Quote ScoreStatistics SettingsPicture Source Speculated Split StepCost Submission "
    "Task Written".split()
)
