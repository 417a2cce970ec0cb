"""Packs: kernels compiled ahead of time, launched where neither their language nor any compiler is installed.

A pack is a folder: `manifest.json`, and `code/DIGEST.cubin`, one file a compiled kernel. An entry of the manifest is
one rung for one shape, element type and set of knobs. It holds what its host code handed to the driver when it was
packed (grid, cluster, shared memory, attributes, parameter bytes with finished tensor maps), and where in those bytes
the arrays' addresses stand. To run it is to write the addresses and to call the driver: no host code is left, so that
a pack made on an Arm laptop runs beside any GPU of its architecture, and a warm launch costs the host a few
microseconds. A code file belongs to one kernel and is named by its digest: equal ones are kept once, `cuobjdump` and
`nvdisasm` read it as it is, and it is loaded when it is first launched.

`Pack.open` checks the format, every file's size and digest. Loading needs the driver alone; arrays may be anything
that has `data_ptr()` (torch), or plain addresses.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorladder import __version__
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Dim3, Launch, Module
from tensorladder.silicon import driver

FORMAT = 2
MANIFEST = "manifest.json"
CODE, HOST = "code", "host"
SUFFIX = {CODE: ".cubin", HOST: ".o.gz"}
ALIGN = 16
"""Bytes that every array's address is a multiple of: what TMA and the widest load take."""

Address = tuple[int, int, int]
"""(byte of the parameter block, number of the array, what is added to its address)."""


@dataclass(frozen=True)
class Array:
    """An argument: extents and strides in elements, dtype by numpy's name ("bfloat16"), written or only read."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    output: bool


@dataclass(frozen=True)
class Template:
    """A launch as `core.program.Launch` has it, with code by digest and the places of addresses in the parameters.

    offsets: where each parameter begins in `params`.
    """

    kernel: str
    code: str
    grid: Dim3
    block: Dim3
    params: bytes
    offsets: tuple[int, ...]
    addresses: tuple[Address, ...]
    smem: int = 0
    cluster: Dim3 = (1, 1, 1)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def launch(self, module: Module) -> Launch:
        """The launch of this module's kernel, its addresses as they stand in `params`."""
        return Launch(module, self.kernel, self.grid, self.block, self.params, self.smem, self.cluster, self.attributes)


@dataclass(frozen=True)
class Entry:
    """One packed call. config: the rung's knobs as JSON has them; source: the digest of what it was compiled from."""

    rung: str
    arch: str
    shape: tuple[int, ...]
    dtype: str
    config: Mapping[str, Any]
    source: str
    arrays: tuple[Array, ...]
    launches: tuple[Template, ...]

    @property
    def label(self) -> str:
        """How to call it in a message."""
        return f"{self.rung} {'x'.join(map(str, self.shape))} {self.dtype}"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self, name) for name in ("rung", "arch", "shape", "dtype", "config", "source")},
            "arrays": [vars(array) for array in self.arrays],
            "launches": [
                {**vars(one), "params": base64.b64encode(one.params).decode(), "attributes": dict(one.attributes)}
                for one in self.launches
            ],
        }


@dataclass(frozen=True)
class Dynamic:
    """A rung with its host code, for extents that are named at a call (`measure.dynamic`).

    names, outputs: of the arrays. function: the host code's entry point. machine: whose native code that is. code,
    host: digests of the machine code and of the object. heads: the kernels' declarations as PTX has them. unread: for
    each kernel, which parts of its parameters it does not read. arguments: what the host code demands of each array,
    None for one that is absent. op: what finds a kernel of ops (`ops.packs`); None for a rung.
    """

    rung: str
    arch: str
    dtype: str
    config: Mapping[str, Any]
    source: str
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    function: str
    machine: str
    code: str
    host: str
    heads: str
    unread: Mapping[str, Any]
    arguments: tuple[Mapping[str, Any] | None, ...]
    op: Mapping[str, Any] | None = None


def _dynamic(record: Mapping[str, Any]) -> Dynamic:
    lists = {key: tuple(record[key]) for key in ("names", "outputs", "arguments")}
    return Dynamic(**{**record, **lists})


def _entry(record: Mapping[str, Any]) -> Entry:
    """The entry that `Entry.record` wrote; KeyError, TypeError or ValueError for anything else."""
    facts = {key: value for key, value in record.items() if key not in ("arrays", "launches", "config")}
    arrays = tuple(Array(**_tuples(array)) for array in record["arrays"])
    launches = tuple(
        Template(**{**_tuples(one), "params": base64.b64decode(one["params"], validate=True)})
        for one in record["launches"]
    )
    return Entry(**_tuples(facts), config=record["config"], arrays=arrays, launches=launches)


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    def made(value: Any) -> Any:
        return tuple(made(v) for v in value) if isinstance(value, list) else value

    return {key: made(value) for key, value in record.items()}


class Pack:
    """An opened pack: `entries`, and `kernel(entry)` to run one.

    facts: what the manifest says of how it was made (versions by package, and the like).
    """

    def __init__(
        self,
        folder: Path,
        arch: str,
        entries: tuple[Entry, ...],
        dynamic: tuple[Dynamic, ...],
        facts: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.arch = arch
        self.entries = entries
        self.dynamic = dynamic
        self.facts = facts

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Pack:
        """Read and check a pack. UsageError (one line) where it is none, cut short, damaged or of another format."""
        folder = Path(folder)
        manifest = _manifest(folder)
        try:
            if manifest["format"] != FORMAT or manifest["tensorladder"] != __version__:
                raise UsageError(
                    f"pack {folder} is stale: made by tensorladder {manifest['tensorladder']} (format "
                    f"{manifest['format']}), this is {__version__} (format {FORMAT}): pack it again"
                )
            for kind in (CODE, HOST):
                for digest, size in manifest[kind].items():
                    _check_file(folder, kind, digest, size)
            entries = tuple(_entry(record) for record in manifest["entries"])
            for one in (one for entry in entries for one in entry.launches):
                _check_template(one, manifest["code"])
            dynamic = tuple(_dynamic(record) for record in manifest["dynamic"])
            if any(one.code not in manifest[CODE] or one.host not in manifest[HOST] for one in dynamic):
                raise ValueError("files of a dynamic entry")
            return cls(folder, manifest["arch"], entries, dynamic, manifest["made"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"pack {folder}: {MANIFEST} is damaged ({error!r}): pack it again") from error

    def check_gpu(self) -> None:
        """UsageError where there is no GPU, or it does not run this pack's machine code."""
        have = driver.capability()
        if not driver.runs_on(self.arch, have):
            raise UsageError(
                f"pack {self.folder} is for {self.arch}, the GPU here is sm_{have[0]}{have[1]}: "
                f"pack it again with another --arch"
            )

    def kernel(self, entry: Entry) -> Kernel:
        """The entry, ready to be launched on this machine's GPU."""
        self.check_gpu()
        return Kernel(entry, self._function)

    @functools.cache  # noqa: B019 (a pack lives as long as its kernels)
    def _function(self, digest: str, kernel: str) -> Any:
        """A kernel, loaded once."""
        return driver.load(self.code(digest), kernel)

    def code(self, digest: str) -> bytes:
        """A piece of machine code."""
        return _path(self.folder, CODE, digest).read_bytes()

    def host(self, digest: str) -> bytes:
        """A host object."""
        return gzip.decompress(_path(self.folder, HOST, digest).read_bytes())

    def files(self, kind: str) -> dict[str, bytes]:
        """All of its machine code or host objects, as they are kept, by digest."""
        return {path.name.removesuffix(SUFFIX[kind]): path.read_bytes() for path in self._paths(kind)}

    def _paths(self, kind: str) -> list[Path]:
        return sorted((self.folder / kind).glob(f"*{SUFFIX[kind]}"))


def write(
    folder: str | os.PathLike[str],
    arch: str,
    entries: Sequence[Entry],
    code: Mapping[str, bytes],
    made: Mapping[str, Any],
    dynamic: Sequence[Dynamic] = (),
    host: Mapping[str, bytes] | None = None,
) -> int:
    """Write a pack; the manifest last, so that a pack that was cut short has none. Its size in bytes.

    code, host: machine code and compressed host objects by digest. UsageError where the folder cannot be written.
    """
    folder, files = Path(folder), {CODE: code, HOST: host or {}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        for kind, images in files.items():
            (folder / kind).mkdir(exist_ok=True)
            for old in (folder / kind).glob(f"*{SUFFIX[kind]}"):
                if old.name.removesuffix(SUFFIX[kind]) not in images:
                    old.unlink()
            for digest, image in images.items():
                _path(folder, kind, digest).write_bytes(image)
        text = _manifest_text(arch, entries, dynamic, files, made)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"pack {folder} cannot be written: {error.strerror or error}") from error
    return len(text) + sum(len(image) for images in files.values() for image in images.values())


def _manifest_text(
    arch: str,
    entries: Sequence[Entry],
    dynamic: Sequence[Dynamic],
    files: Mapping[str, Mapping[str, bytes]],
    made: Mapping[str, Any],
) -> str:
    manifest = {
        "format": FORMAT,
        "tensorladder": __version__,
        "arch": arch,
        "made": dict(made),
        **{kind: {digest: len(images[digest]) for digest in sorted(images)} for kind, images in files.items()},
        "entries": [entry.record() for entry in entries],
        "dynamic": [vars(one) for one in dynamic],
    }
    manifest["digest"] = _digest_of(manifest)
    return json.dumps(manifest, indent=1) + "\n"


def digest(image: bytes) -> str:
    """The name of a piece of machine code."""
    return hashlib.sha256(image).hexdigest()[:32]


def _digest_of(manifest: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def _path(folder: Path, kind: str, digest: str) -> Path:
    return folder / kind / f"{digest}{SUFFIX[kind]}"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise UsageError(f"{folder} is no pack: {MANIFEST}: {why} (`tensorladder pack` makes one)") from error
    try:
        manifest = json.loads(text)
        whole = manifest["digest"] == _digest_of(manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"pack {folder}: {MANIFEST} is cut short or damaged: pack it again") from error
    if not whole:
        raise UsageError(f"pack {folder}: {MANIFEST} was changed after it was made: pack it again")
    return manifest


def _check_file(folder: Path, kind: str, name: str, size: int) -> None:
    path = _path(folder, kind, name)
    try:
        image = path.read_bytes()
    except OSError as error:
        raise UsageError(f"pack {folder}: {kind}/{path.name}: {error.strerror}: pack it again") from error
    if len(image) != size or digest(image) != name:
        what = f"has {len(image)} bytes of {size}" if len(image) != size else "is damaged"
        raise UsageError(f"pack {folder}: {kind}/{path.name} {what}: pack it again")


def _check_template(one: Template, code: Mapping[str, int]) -> None:
    """ValueError where a launch names code that is not there, or places outside its parameters."""
    inside = all(0 <= at <= len(one.params) - 8 and at % 8 == 0 for at, _, _ in one.addresses)
    if one.code not in code or not inside:
        raise ValueError(f"kernel {one.kernel}")


class Kernel:
    """An entry on this machine's GPU. Call it with a stream's handle and arrays, or `bind` them once and call that."""

    def __init__(self, entry: Entry, function: Callable[[str, str], Any]) -> None:
        """function: a loaded kernel by its code's digest and its name."""
        self.entry = entry
        self._types: list[Any] = [None] * len(entry.arrays)
        driver.use_context()
        self._launches = []
        for one in entry.launches:
            launch = one.launch(Module("", entry.arch))
            self._launches.append(driver.Prepared(launch, one.offsets, function(one.code, one.kernel), one.addresses))

    def __call__(self, stream: int, *arrays: Any) -> None:
        """Check the arrays and launch. stream: a CUstream as an integer (torch's `stream.cuda_stream`)."""
        self.launch(stream, self.addresses(arrays))

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Launch on arrays at these addresses, in the entry's order; nothing is checked."""
        for prepared in self._launches:
            prepared.launch(stream, addresses)

    def bind(self, stream: int, *arrays: Any) -> Callable[[], None]:
        """A function that launches on these arrays, which are checked now."""
        addresses = self.addresses(arrays)
        return lambda: self.launch(stream, addresses)

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Addresses of torch tensors; UsageError where one is not what was packed."""
        wanted = self.entry.arrays
        if len(arrays) != len(wanted):
            names = ", ".join(array.name for array in wanted)
            raise UsageError(f"{self.entry.label}: {len(arrays)} arrays given, it takes {names}")
        found = []
        for number, (want, tensor) in enumerate(zip(wanted, arrays)):
            # What passes here would pass below too; comparing is cheaper than explaining.
            known = self._types[number]
            same = tensor.shape == want.shape and tensor.stride() == want.strides and tensor.dtype is known
            address = tensor.data_ptr()
            if not same or address % ALIGN or not tensor.is_cuda:
                address = _address(self.entry, want, tensor)
                self._types[number] = tensor.dtype
            found.append(address)
        return found


def _address(entry: Entry, want: Array, tensor: Any) -> int:
    def refuse(what: str, got: Any, wanted: Any) -> UsageError:
        return UsageError(f"{entry.label}: {want.name}: {what} {got}, packed for {wanted}")

    if tuple(tensor.shape) != want.shape:
        raise refuse("shape", tuple(tensor.shape), want.shape)
    strides = tuple(tensor.stride())
    if any(got != step for extent, got, step in zip(want.shape, strides, want.strides) if extent > 1):
        raise refuse("strides", strides, want.strides)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != want.dtype:
        raise refuse("dtype", dtype, want.dtype)
    if tensor.device.type != "cuda":
        raise refuse("lies on", tensor.device.type, "cuda")
    address = tensor.data_ptr()
    if address % ALIGN:
        raise refuse("address", hex(address), f"multiples of {ALIGN} bytes")
    return address
