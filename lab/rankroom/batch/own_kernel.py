"""A kernel under the Python of this process, for cells that run without a front end."""

from __future__ import annotations

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from traitlets import default


class OwnKernel(AsyncKernelManager):
    """The kernel `python3`, whatever the user has installed under this name: a kernel of another
    environment may come first where this one belongs to somebody else."""

    @default("kernel_spec_manager")  # type: ignore[untyped-decorator]
    def _without_installed_kernels(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])
