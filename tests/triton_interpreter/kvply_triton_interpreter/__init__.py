"""A Triton backend named ``cpu`` that compiles nothing. Test only; never part of the kvply wheel.

vLLM's Model Runner V2 needs Triton, and vLLM for CPU accepts Triton only if it has a backend named ``cpu``; the
Triton wheels have none. With ``TRITON_INTERPRET=1`` Triton runs its kernels in Python and asks the backend for
nothing but its existence, which is what this package provides.

Without ``TRITON_INTERPRET=1`` the backend refuses to be imported. ``import triton`` then fails with ImportError,
which vLLM and PyTorch take for "no Triton": installing this package changes nothing for other runs.
"""
