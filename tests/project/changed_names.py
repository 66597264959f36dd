"""What really changes in torch when devices are made and `as_cuda` is entered, beside the tables.

Run in a fresh interpreter, `main()` prints as JSON what differs: attributes that change and stand
in no table, rows whose attribute does not change, and what `as_cuda` leaves behind. It looks at
every loaded module and class of torch, at the classes of simgpu, at built-in errors and at
`ctypes.CDLL`.
"""

import builtins
import ctypes
import importlib
import json
import pkgutil
import sys

import simgpu
from simgpu._util.patching import Action, find_owner

# What install() and as_cuda() import late. Imported before anything is compared, since modules of
# torch that they import add names to others.
FOLDERS = ("_native", "_core", "_memory", "_ops", "_backend", "_cuda")

MISSING = object()


def import_folders():
    for folder in FOLDERS:
        package = importlib.import_module(f"simgpu.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def of_torch(name):
    return name == "torch" or name.startswith("torch.")


def namespaces():
    """Modules and classes in which something could be replaced, by the name found first."""
    errors = [kind for kind in vars(builtins).values() if is_class(kind, BaseException)]
    found = {id(kind): (kind, f"builtins.{kind.__name__}") for kind in errors}
    found[id(ctypes.CDLL)] = ctypes.CDLL, "ctypes.CDLL"
    todo = [(module, name) for name, module in sorted(sys.modules.items()) if of_torch(name)]
    todo.append((sys.modules["simgpu._util.naming"], "simgpu._util.naming"))
    for name, module in sorted(sys.modules.items()):
        if name.startswith("simgpu."):
            todo += classes_in(module)
    while todo:
        owner, name = todo.pop(0)
        if id(owner) not in found and hasattr(owner, "__dict__"):
            found[id(owner)] = owner, name
            todo += classes_in(owner)
    return list(found.values())


def is_class(value, base=object):
    """Whether a value is a class; `isinstance` would make deprecated ones of torch warn."""
    return issubclass(type(value), type) and issubclass(value, base)


def classes_in(owner):
    """The classes of torch and simgpu that a module or class has as attributes."""
    for value in list(vars(owner).values()):
        if is_class(value):
            home = str(value.__module__)
            if of_torch(home) or home.startswith("simgpu."):
                yield value, f"{home}.{value.__qualname__}"


def snapshot(owners):
    """Every attribute of these namespaces, by the owner's id and the attribute's name."""
    return {
        (id(owner), name): value
        for owner, _ in owners
        for name, value in list(vars(owner).items())
        if name != "__warningregistry__"
    }


def changed(before, after):
    return {
        key for key in {*before, *after} if before.get(key, MISSING) is not after.get(key, MISSING)
    }


def in_tables(files):
    """What the tables of these files say will change; imports the owners where need be."""
    expected = set()
    for file in files:
        for row in file.PATCHES:
            if isinstance(row, Action):
                expected |= {attribute(name) for name in row.adds}
            else:
                expected |= {(id(owner), name) for owner, name in row.targets()}
    return expected


def attribute(path):
    """The key of an attribute given by its full name."""
    owner, _, name = path.rpartition(".")
    return id(find_owner(owner)), name


def copies(owners, after, rows):
    """Where else modules of torch.cuda hold what the rows have put into torch.cuda."""
    homes = {
        id(owner)
        for owner, name in owners
        if name == "torch.cuda" or name.startswith("torch.cuda.")
    }
    values = {id(after[key]) for key in rows if key[0] in homes and callable(after[key])}
    return {
        key
        for key, value in after.items()
        if key[0] in homes and key not in rows and id(value) in values
    }


def compare(before, after, expected, allowed=frozenset()):
    """What is not as the tables say: names that change unlisted, and names listed in vain."""
    really = changed(before, after)
    return really - expected - allowed, expected - really


def main():
    import_folders()
    from simgpu._backend import install
    from simgpu._devices import block

    in_tables(block.FILES)  # imports their owners
    for_good = in_tables(install.torch_patches())
    by_pytorch = {attribute(name) for name in install.ADDED_BY_PYTORCH}
    owners = namespaces()
    names = {id(owner): name for owner, name in owners}
    stock = snapshot(owners)
    with simgpu.devices(1):
        pass
    installed = snapshot(owners)
    for_a_while = in_tables(block.FILES)
    with simgpu.as_cuda(1):
        within = snapshot(owners)
    afterwards = snapshot(owners)

    more = copies(owners, within, for_a_while)
    good = compare(stock, installed, for_good, by_pytorch)
    while_on = compare(installed, within, for_a_while | more)
    found = {
        "replaced for good, and in no table": good[0],
        "in a table for good, and not replaced": good[1],
        "replaced by as_cuda, and in no table": while_on[0],
        "in a table of as_cuda, and not replaced": while_on[1],
        "left behind by as_cuda": changed(installed, afterwards),
    }
    assert more, "torch.cuda.random.manual_seed is one of them"
    print(
        json.dumps(
            {
                what: sorted(f"{names.get(owner, owner)}.{name}" for owner, name in keys)
                for what, keys in found.items()
            }
        )
    )
