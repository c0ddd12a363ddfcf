"""Process in which Triton's kernels run on the CPU, through Triton's interpreter.

Triton decides when a kernel is defined whether it will be interpreted. A process of its own keeps the
interpreter away from everything else that a test process imports.

The interpreter of triton 3.6 has three faults, which are repaired here:

* It multiplies bf16 numbers as the whole numbers of their bits.
* It cuts numbers off where a GPU rounds them to bf16.
* Its bounds of loops are arrays of one element, which numpy 2.4 no longer converts to a number.

``tests/workloads/proteins/model/kernels/test_interpreter.py`` shows that the repaired interpreter is right.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from unittest import mock

P = ParamSpec("P")
R = TypeVar("R")
TIMEOUT_SECONDS = 300


class Interpreter:
    """Process of the interpreter, which calls functions of importable modules."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """Return what the function returns there; its exceptions are raised here."""
        return self._pool.submit(function, *arguments, **keywords).result(TIMEOUT_SECONDS)


@contextmanager
def interpreter_process() -> Iterator[Interpreter]:
    """Start the process, and end it afterwards."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=begin) as pool:
        # The process imports the main module of this one, and perhaps Triton with it, before it can set the
        # variable itself.
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(os.getpid).result(TIMEOUT_SECONDS)
        yield Interpreter(pool)


def begin() -> None:
    """Repair the interpreter of this process, which began with ``TRITON_INTERPRET``."""
    import torch

    torch.set_num_threads(1)
    repair_bf16()
    repair_bounds()
    find_builtins_once()


def repair_bounds() -> None:
    """Make the interpreter's tensors of one element bounds of loops."""
    from triton.runtime import interpreter

    patch_before = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def find_builtins_once() -> None:
    """Keep the names of Triton's functions, which each launch and each inner call looks for among all."""
    import triton.language as tl
    from triton.runtime import interpreter

    names: dict[Any, list[str]] = {}

    def patch(package: Any, builder: Any, scope: Any) -> None:
        if package not in names:
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if tl.core.is_builtin(member)]
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):  # inside of another call it has been patched
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch


def repair_bf16() -> None:
    """Make the interpreter multiply bf16 numbers, and round to them, as a GPU does."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def as_fp32(handle: Any) -> Any:
        """Return the numbers of a tensor. numpy has no bf16, so the interpreter holds its bits."""
        if handle.dtype.scalar != tl.bfloat16:
            return handle.data
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    def dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        # The product of two bf16 numbers is exact in fp32.
        product = np.matmul(as_fp32(a), as_fp32(b), dtype=d.data.dtype)
        return TensorHandle(product + d.data, d.dtype.scalar)

    cast_before = InterpreterBuilder.cast_impl

    def cast(self: Any, source: Any, to: Any) -> Any:
        is_narrowed = source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16
        is_widened = source.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32
        if is_narrowed:
            numbers = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return TensorHandle(numbers.view(torch.int16).numpy().view(np.uint16), to.scalar)
        if is_widened:
            return TensorHandle(as_fp32(source), to.scalar)
        return cast_before(self, source, to)

    InterpreterBuilder.create_dot = dot
    InterpreterBuilder.cast_impl = cast
    InterpreterBuilder.create_fp_trunc = cast
    InterpreterBuilder.create_fp_ext = cast
