"""The indexer's key cache: fp8 rows with power-of-two scales, in vLLM's block layout.

The cache is a uint8 view of shape [num_blocks, block_size, row_bytes], but a row is not stored in one piece.
Each block holds first ``block_size * head_dim`` fp8 bytes, token after token, and then the fp32 scales of
its tokens, one per :data:`GROUP_SIZE` values. Blocks may lie any distance apart; the bytes of one block are
contiguous. Scales are ue8m0: powers of two, stored as fp32.
"""

import torch

from kvply.vllm.cpu_reference.paged_cache import split_slots

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
GROUP_SIZE = 128
"""Values that share a scale."""
SCALE_BYTES = 4
KEY_AMAX_FLOOR = 1e-4
"""Keys smaller than this are scaled as if they were this large, as vLLM's cache kernel does."""


def quantize_ue8m0(values: torch.Tensor, group_size: int, amax_floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise groups of the last dimension to fp8, each with the smallest power of two that fits.

    Shapes: [..., width] -> fp8 [..., width] and fp32 scales [..., width / group_size].
    """
    groups = values.float().reshape(*values.shape[:-1], -1, group_size)
    amax = groups.abs().amax(-1, keepdim=True).clamp_(min=amax_floor)
    scales = (amax / FP8_MAX).log2_().ceil_().exp2_()
    quantized = (groups / scales).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
    return quantized.flatten(-2), scales.squeeze(-1)


def head_dim_of(cache: torch.Tensor) -> int:
    """Values per token: a row spends ``GROUP_SIZE`` bytes and one scale on each group."""
    num_groups, rest = divmod(int(cache.shape[2]), GROUP_SIZE + SCALE_BYTES)
    if rest:
        raise ValueError(f"indexer cache rows of {cache.shape[2]} bytes are not whole groups of {GROUP_SIZE}")
    return num_groups * GROUP_SIZE


def write_keys(cache: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> None:
    """Quantise keys of shape [at least num_slots, head_dim] and store them; negative slots are skipped."""
    slots = slots.flatten().long()
    is_real = slots >= 0
    block_ids, offsets = split_slots(slots[is_real], cache.shape[1])
    quantized, scales = quantize_ue8m0(keys[: slots.shape[0]][is_real], GROUP_SIZE, KEY_AMAX_FLOOR)
    key_bytes = quantized.view(torch.uint8)
    scale_bytes = scales.contiguous().view(torch.uint8)
    blocks, scales_start = _block_bytes(cache)
    _write_pieces(blocks, block_ids, offsets * key_bytes.shape[1], key_bytes)
    _write_pieces(blocks, block_ids, scales_start + offsets * scale_bytes.shape[1], scale_bytes)


def read_keys(cache: torch.Tensor, block_ids: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Return a request's first ``num_tokens`` keys, dequantised to fp32 [num_tokens, head_dim]."""
    head_dim = head_dim_of(cache)
    num_blocks = -(-num_tokens // cache.shape[1])
    blocks, scales_start = _block_bytes(cache)
    needed = blocks[block_ids[:num_blocks].long()]
    groups = needed[:, :scales_start].reshape(-1, head_dim // GROUP_SIZE, GROUP_SIZE).view(FP8)
    scales = needed[:, scales_start:].contiguous().view(torch.float32).view(*groups.shape[:2], 1)
    return (groups[:num_tokens].float() * scales[:num_tokens]).flatten(1)


def _block_bytes(cache: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The cache as [num_blocks, bytes per block], and where the scales start in a block."""
    num_blocks, block_size, row_bytes = cache.shape
    return cache.view(num_blocks, block_size * row_bytes), block_size * head_dim_of(cache)


def _write_pieces(
    blocks: torch.Tensor, block_ids: torch.Tensor, starts: torch.Tensor, pieces: torch.Tensor
) -> None:
    columns = starts[:, None] + torch.arange(pieces.shape[1])
    blocks[block_ids[:, None], columns] = pieces
