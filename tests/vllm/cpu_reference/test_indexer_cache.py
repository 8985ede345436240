"""The indexer cache's bytes, decoded here from the description of vLLM's layout."""

import pytest
import torch

from kvply.vllm.cpu_reference.indexer_cache import head_dim_of, quantize_ue8m0, read_keys, write_keys

HEAD_DIM = 128
ROW_BYTES = HEAD_DIM + 4


def make_cache(num_blocks: int, block_size: int, strided: bool) -> torch.Tensor:
    page = block_size * ROW_BYTES
    stride = page + 64 if strided else page
    raw = torch.zeros(num_blocks * stride, dtype=torch.uint8)
    return raw.as_strided((num_blocks, block_size, ROW_BYTES), (stride, ROW_BYTES, 1))


def decode(cache: torch.Tensor, block_id: int, offset: int) -> tuple[torch.Tensor, float]:
    """One token's key: fp8 bytes of all tokens come first in a block, then one fp32 scale per token."""
    block_size = cache.shape[1]
    block = bytes(cache[block_id].flatten().tolist())
    values = torch.frombuffer(bytearray(block[offset * HEAD_DIM : (offset + 1) * HEAD_DIM]), dtype=torch.uint8)
    scale_at = block_size * HEAD_DIM + 4 * offset
    scale = torch.frombuffer(bytearray(block[scale_at : scale_at + 4]), dtype=torch.float32)
    return values.view(torch.float8_e4m3fn).float() * scale, float(scale)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_keys_are_stored_in_vllms_block_layout(block_size: int, strided: bool) -> None:
    cache = make_cache(70, block_size, strided)
    num_tokens = 40
    magnitudes = 10.0 ** torch.linspace(-3, 3, num_tokens)[:, None]
    keys = torch.randn(num_tokens, HEAD_DIM, generator=torch.Generator().manual_seed(3)) * magnitudes
    block_ids = torch.randperm(69, generator=torch.Generator().manual_seed(4)) + 1
    positions = torch.arange(num_tokens)
    slots = block_ids[positions // block_size] * block_size + positions % block_size

    write_keys(cache, slots, keys)

    for position in range(num_tokens):
        stored, scale = decode(cache, int(block_ids[position // block_size]), position % block_size)
        amax = float(keys[position].abs().max())
        assert torch.tensor(scale).log2().frac() == 0  # a power of two ...
        assert amax / 448 <= scale < 2 * amax / 448  # ... and the smallest that fits
        # e4m3 keeps 3 mantissa bits; below 2**-6 its steps are 2**-9.
        torch.testing.assert_close(stored, keys[position], rtol=2**-4, atol=scale * 2**-10)
    back = read_keys(cache, block_ids, num_tokens)
    assert torch.equal(back[17], decode(cache, int(block_ids[17 // block_size]), 17 % block_size)[0])
    assert back.shape == (num_tokens, HEAD_DIM)


def test_padding_slots_and_surplus_rows_are_skipped() -> None:
    cache = make_cache(3, 4, strided=False)

    write_keys(cache, torch.tensor([-1, 5]), torch.ones(6, HEAD_DIM))

    assert decode(cache, 1, 1)[0].tolist() == [1.0] * HEAD_DIM
    cache[1, :, :] = 0
    assert not cache.any()


def test_zero_keys_stay_finite() -> None:
    quantized, scales = quantize_ue8m0(torch.zeros(2, HEAD_DIM), 128, 1e-4)

    assert not quantized.float().any()
    assert (scales > 0).all()


def test_quantising_several_groups_scales_each_alone() -> None:
    values = torch.cat([torch.full((1, 128), 3.0), torch.full((1, 128), 3072.0)], dim=1)

    quantized, scales = quantize_ue8m0(values, 128, 1e-10)

    assert scales.tolist() == [[2.0**-7, 8.0]]
    torch.testing.assert_close(quantized.float().view(1, 2, 128) * scales[..., None], values.view(1, 2, 128))


def test_rows_of_unknown_width_are_refused() -> None:
    assert head_dim_of(torch.zeros(1, 1, 264)) == 256
    with pytest.raises(ValueError, match="130 bytes"):
        head_dim_of(torch.zeros(1, 1, 130))
