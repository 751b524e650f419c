"""Names in the table of slowdowns."""

import pytest

from traincast.report.terminal.slowdown import _plain


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("forward", "forward"),
        ("void at::native::(anonymous namespace)::max_pool<float, int>(float const*, int)", "at::native::max_pool"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(cutlass_80::Params)", "cutlass::Kernel"),
        ("ampere_sgemm_64x32_sliced1x4_tn", "ampere_sgemm_64x32_sliced1x4_tn"),
        ("operator<", "operator"),
    ],
)
def test_a_kernel_is_named_by_its_function(name, shown):
    assert _plain(name) == shown
