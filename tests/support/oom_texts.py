"""The words of out-of-memory errors of any release of PyTorch, from amounts as they are printed."""

from simgpu._core.out_of_memory import format_size, text

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_VARIABLES = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_MANAGEMENT = "See documentation for Memory Management"
_SPLITTING = (
    f"try setting max_split_size_mb to avoid fragmentation.  {_MANAGEMENT} and "
    "PYTORCH_CUDA_ALLOC_CONF"
)


def oom_text(release, *, device=0, name="CUDA", processes=(), reserved=None, **printed):
    """The text of `torch.OutOfMemoryError` of a release.

    `processes` are others, or this one where the driver only knows numbers, and what they have;
    `private` is what is in private pools, as those of graphs; `allowed` what
    `set_per_process_memory_fraction` allows.
    """
    amounts = {what: _bytes(amount) for what, amount in printed.items()}
    if reserved is not None:  # older releases print it in the place of what is unallocated
        amounts["unallocated"] = _bytes(reserved) - amounts["allocated"]
    if release >= (2, 11):
        return text(name, device, **{"allowed": None, **amounts})
    shown = {what: format_size(amount) for what, amount in amounts.items() if amount is not None}
    if release < (2, 1):
        return _text_of_1(release, device, name, shown, reserved)
    # 2.1 had this slip of the pen.
    capacity = "capacity" if release >= (2, 2) else "capacty"
    words = (
        f"{name} out of memory. Tried to allocate {shown['asked']}. GPU {device} has a total "
        f"{capacity} of {shown['total']} of which {shown['free']} is free. "
    )
    for process, amount in processes:
        words += f"Process {process} has {amount} memory in use. "
    if "in_use" in shown:
        words += f"Including non-PyTorch memory, this process has {shown['in_use']} memory in use. "
    if "allowed" in shown:
        words += f"{shown['allowed']} allowed; "
    pools = ""
    if "private" in shown:
        pools = f"with {shown['private']} allocated in private pools (e.g., {name} Graphs), "
    words += (
        f"Of the allocated memory {shown['allocated']} is allocated by PyTorch, {pools}and "
        f"{shown['unallocated']} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large "
    )
    if release < (2, 2):
        return words + _SPLITTING
    # That of 2.10 as printed by 2.10.0+cu128.
    variable = "PYTORCH_ALLOC_CONF" if release >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"
    return (
        f"{words}try setting {variable}=expandable_segments:True to avoid fragmentation.  "
        f"{_MANAGEMENT}  ({_VARIABLES})"
    )


def _text_of_1(release, device, name, shown, reserved):
    """The words before 2.1, with an advice since there is a setting to be advised."""
    words = (
        f"{name} out of memory. Tried to allocate {shown['asked']} (GPU {device}; "
        f"{shown['total']} total capacity; {shown['allocated']} already allocated; "
        f"{shown['free']} free; {reserved} reserved in total by PyTorch)"
    )
    if release < (1, 10):
        return words
    return f"{words} If reserved memory is >> allocated memory {_SPLITTING}"


def _bytes(amount):
    if amount is None:
        return None
    number, unit = amount.split()
    return round(float(number) * _UNITS[unit])
