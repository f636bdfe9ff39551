"""The errors of a module or kernel that does not fit where it was tried."""

import sys


def misfits() -> tuple[type[Exception], ...]:
    """Return the errors by which a replacement shows that the model, or the device, can't use it.

    Those of Triton, which are no RuntimeErrors, say that it could not compile a kernel.
    """
    triton = sys.modules.get("triton.errors")
    found = (TypeError, ValueError, AttributeError, IndexError, RuntimeError)
    return found if triton is None else (*found, triton.TritonError)
