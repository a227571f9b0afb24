"""What can be registered, and how long it lives."""

import array
import ctypes
import gc
import mmap
import sys
import weakref

import polyrail
import pytest
from conftest import SOON, engine

numpy = pytest.importorskip("numpy")


class Tensor:
    """What the package uses of a torch.Tensor, over numpy: where PyTorch is missing."""

    class Device:
        def __init__(self, kind):
            self.type = kind

    def __init__(self, data, kind="cpu"):
        self.data, self.device, self.shape = data, self.Device(kind), data.shape

    def data_ptr(self):
        return self.data.ctypes.data

    def element_size(self):
        return self.data.itemsize

    def numel(self):
        return self.data.size

    def is_contiguous(self):
        return self.data.flags.c_contiguous

    def stride(self):
        return tuple(stride // self.data.itemsize for stride in self.data.strides)

    def detach(self):
        return Tensor(self.data)


class Packed:
    """Has DLPack and nothing else."""

    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


class OldPacked(Packed):
    """A producer from before versions."""

    def __dlpack__(self, stream=None):
        return self.data.__dlpack__()


def pages():
    return mmap.mmap(-1, 4096)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(4096),
        pages,
        lambda: array.array("i", [0] * 1024),
        lambda: numpy.zeros((32, 32), dtype="f4"),
        lambda: memoryview(bytearray(8192))[4096:],
        lambda: Tensor(numpy.zeros((32, 32), dtype="f4")),
        lambda: Packed(numpy.zeros((32, 32), dtype="f4")),
        lambda: OldPacked(numpy.zeros((32, 32), dtype="f4")),
    ],
    ids=["bytearray", "mmap", "array", "numpy", "memoryview", "tensor", "dlpack", "old_dlpack"],
)
def test_memory_of_every_kind_is_written_and_read(pair, make):
    a, b, to_b, _ = pair
    memory = make()
    region = b.register(memory)
    assert region.nbytes == len(region) == 4096 and not region.readonly
    source, back = bytearray(range(256)) * 16, bytearray(4096)
    remote = a.import_region(region.describe())
    assert (remote.nbytes, remote.access, remote.is_on_device) == (4096, "all", False)
    a.write(to_b, a.register(source), remote).wait(SOON)
    a.read(to_b, a.register(back), remote).wait(SOON)
    assert back == source
    shown = memory.data if hasattr(memory, "__dlpack__") or isinstance(memory, Tensor) else memory
    assert bytes(memoryview(shown).cast("B")) == source


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.zeros((8, 8))[:, ::2],
        lambda: numpy.zeros((2, 3, 4)).transpose(0, 2, 1),
        lambda: Tensor(numpy.zeros((8, 8))[:, ::2]),
        lambda: Packed(numpy.zeros((2, 3, 4)).transpose(0, 2, 1)),
        lambda: memoryview(bytearray(8))[::2],
    ],
    ids=["strided", "transposed", "tensor", "dlpack", "memoryview"],
)
def test_what_is_not_contiguous_is_refused_with_its_strides(pair, make):
    with pytest.raises(BufferError, match="not contiguous: shape .* strides .*; register"):
        pair[0].register(make())


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor, Packed])
def test_fortran_order_is_one_block_of_bytes(pair, wrap):
    a, b, to_b, to_a = pair
    source = numpy.arange(24).reshape(2, 3, 4).T
    assert source.flags.f_contiguous and not source.flags.c_contiguous
    target = numpy.zeros(source.shape, source.dtype, order="F")
    there = b.register(target)
    remote = a.import_region(there.describe())
    region = a.register(wrap(source), access="local")
    assert region.nbytes == source.nbytes
    a.write(to_b, region, remote).wait(SOON)
    assert (target == source).all()


def test_dimensions_of_one_and_of_none_are_contiguous(pair):
    for shape in [(1, 8), (8, 1), (0, 3), (1,)]:
        whole = numpy.zeros((8, 8))[: shape[0], : shape[-1]] if len(shape) == 2 else numpy.zeros(1)
        if whole.flags.c_contiguous:
            assert pair[0].register(Packed(whole)).nbytes == whole.nbytes


def test_read_only_memory_is_for_sending(pair):
    a, b, to_b, to_a = pair
    frozen = numpy.arange(8)
    frozen.flags.writeable = False
    for memory in [b"x" * 64, frozen, memoryview(bytearray(64)).toreadonly()]:
        with pytest.raises(ValueError, match="read-only, so access can't be \"all\""):
            a.register(memory)
        region = a.register(memory, access="read")
        target = bytearray(64)
        remote = b.import_region(region.describe())
        b.read(to_a, b.register(target), remote).wait(SOON)
        assert target == bytes(memory)
        with pytest.raises(ValueError, match="can't fill it"):
            a.receive(to_b, 1, region[:8])
        there = b.register(target)
        with pytest.raises(ValueError, match="can't fill it"):
            a.read(to_b, [region], [a.import_region(there.describe())])


@pytest.mark.parametrize("memory", ["text", 5, None, object()])
def test_what_holds_no_memory_is_refused(pair, memory):
    with pytest.raises(TypeError, match="holds no memory that can be registered; allowed:"):
        pair[0].register(memory)


def test_references_to_objects_are_refused(pair):
    with pytest.raises(TypeError, match="references to Python's objects"):
        pair[0].register(numpy.array([None, {}]))


def test_a_tensor_of_another_device_is_refused(pair):
    with pytest.raises(TypeError, match='on "meta"; allowed: cpu, cuda'):
        pair[0].register(Tensor(numpy.zeros(8), "meta"))


class CudaArray:
    def __init__(self, **more):
        base = {"shape": (4, 4), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3}
        self.__cuda_array_interface__ = {**base, **more}


def test_a_cuda_array_is_checked_before_the_driver_is_asked(pair):
    with pytest.raises(BufferError, match="not contiguous: shape"):
        pair[0].register(CudaArray(strides=(4, 32)))
    with pytest.raises(BufferError, match="masked"):
        pair[0].register(CudaArray(mask=object()))
    with pytest.raises(BufferError, match='typestr is "f"'):
        pair[0].register(CudaArray(typestr="f"))
    with pytest.raises(ValueError, match="read-only"):
        pair[0].register(CudaArray(data=(0x7F0000000000, True)))
    # Nobody has allocated that, with a GPU or without.
    with pytest.raises(polyrail.RegionError) as refused:
        pair[0].register(CudaArray(strides=(16, 4)))
    assert refused.value.reason == "device"


def test_a_list_gives_a_list_of_regions(pair):
    a, b, to_b, _ = pair
    blocks = [numpy.full(16, number, dtype="u1") for number in range(10)]
    targets = [numpy.zeros(16, dtype="u1") for _ in range(10)]
    regions = b.register(targets)
    remotes = [a.import_region(region.describe()) for region in regions]
    assert a.write(to_b, a.register(blocks), remotes).wait(SOON).nbytes == 160
    assert all((one == other).all() for one, other in zip(blocks, targets))


def test_memory_by_address_is_kept_by_its_owner(pair):
    a, b, to_b, _ = pair
    owner, owner_of_64 = numpy.zeros(64, dtype="u1"), numpy.zeros(64, dtype="u1")
    gone = weakref.ref(owner)
    region = b.register_address(owner.ctypes.data, 64, keep=owner)
    del owner
    source = a.register(b"x" * 64, access="local")
    a.write(to_b, source, a.import_region(region.describe())).wait(SOON)
    assert bytes(gone()) == b"x" * 64
    region.close()
    assert gone() is None
    for wrong in [(0, 8), (2**64 - 8, 16)]:
        with pytest.raises(ValueError, match="allowed: an address other than 0"):
            b.register_address(*wrong)
    for wrong in [(16, 4096), (owner_of_64.ctypes.data, 1 << 46)]:
        with pytest.raises(polyrail.RegionError, match="no memory of this process") as refused:
            b.register_address(*wrong)
        assert refused.value.reason == "not_there" and "cuda=True" in refused.value.help


def test_memory_that_can_not_be_written_is_registered_for_reads_alone(pair):
    a, b, to_b, to_a = pair
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    address = c.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for access in ["all", "write"]:
        with pytest.raises(polyrail.RegionError, match="mapped read-only") as refused:
            a.register_address(address, 4096, access=access)
        assert "PROT_WRITE" in refused.value.help
    region = a.register_address(address, 4096, access="read")
    target = bytearray(b"x" * 4096)
    b.read(to_a, b.register(target), b.import_region(region.describe())).wait(SOON)
    assert target == bytes(4096)


def test_a_single_element_without_dimensions_is_registered(pair):
    a, b, to_b, _ = pair
    source, target = numpy.array(7, dtype="i8"), numpy.array(0, dtype="i8")
    region = b.register(target)
    assert region.nbytes == 8
    remote = a.import_region(bytearray(region.describe()))
    a.write(to_b, a.register(source), remote).wait(SOON)
    assert target == 7
    with pytest.raises(TypeError):
        a.register(numpy.array("a", dtype=object))


def test_memory_whose_file_is_cut_off_fails_its_transfer_and_no_other(tmp_path):
    size = 4 << 20
    with engine("a", path="tcp") as a, engine("b", path="tcp") as b, open(tmp_path / "file", "wb+") as file:
        file.truncate(size)
        to_b, there = a.add_peer(b.metadata()), b.register(bytearray(size))
        remote, good = a.import_region(there.describe()), a.register(bytearray(size))
        with mmap.mmap(file.fileno(), size) as mapped, a.register(mapped) as bad:
            a.write(to_b, bad, remote).wait(SOON)
            file.truncate(mmap.PAGESIZE)
            with pytest.raises(polyrail.TransferError, match="can't be read: it was unmapped, or its file cut off"):
                a.write(to_b, bad, remote).wait(SOON)
        a.write(to_b, good, remote).wait(SOON)
        rails = [rail for peer in a.stats()["peers"] for rail in peer["rails"]]
        assert sum(rail["down_count"] for rail in rails) <= to_b.flows[1], "each flow found out once at most"


def test_a_region_keeps_its_memory_until_it_is_closed(pair):
    a, b, to_b, _ = pair
    memory = bytearray(4096)
    references = sys.getrefcount(memory)
    region = b.register(memory)
    part = region[:8]
    with pytest.raises(BufferError):
        memory.extend(b"more")
    remote = a.import_region(region.describe())
    here = a.register(bytearray(4096))
    assert a.write(to_b, here, remote).wait(SOON).nbytes == 4096
    region.close()
    region.close()
    memory.extend(b"more")
    assert sys.getrefcount(memory) == references
    with pytest.raises(polyrail.Refused):
        a.write(to_b, here, remote).wait(SOON)
    with pytest.raises(polyrail.PostError) as ended:
        b.send(b.peers()[0], 1, part)
    assert ended.value.reason == "region_dropped"
    with b.register(memory):
        pass
    memory.extend(b"more")


class Owner(bytearray):
    """Memory that may refer to what uses it."""


def references(pair):
    """What a program may keep beside the memory, by name."""
    a, b, to_b, to_a = pair
    away = b.import_region(a.register(bytearray(8)).describe())
    return {
        "region": lambda region: region,
        "slice": lambda region: region[2:],
        "transfer": lambda region: b.receive(to_a, 9, region),
        "prepared": lambda region: b.prepare_write(to_a, region, away),
        "posted": lambda region: (it := b.prepare_receive(to_a, 8, region), it.post(), it.post()),
    }


@pytest.mark.parametrize("kind", ["region", "slice", "transfer", "prepared", "posted"])
def test_memory_that_refers_to_its_own_region_is_freed(pair, kind):
    a, b, to_b, _ = pair
    refer = references(pair)[kind]
    gc.collect()
    owner = Owner(8)
    region = b.register(owner)
    owner.refers = refer(region)
    owner.more = [owner, region]
    remote, here = a.import_region(region.describe()), a.register(bytearray(8))
    gone, region_gone = weakref.ref(owner), weakref.ref(region)
    del owner
    # Somebody has the region yet.
    gc.collect()
    a.write(to_b, here, remote).wait(SOON)
    assert gone() is not None
    del region
    gc.collect()
    assert gone() is None and region_gone() is None
    with pytest.raises(polyrail.Refused) as refused:
        a.write(to_b, here, remote).wait(SOON)
    assert refused.value.why == "region_dropped"


def test_a_cycle_by_address_ends_its_region_before_any_memory_goes(pair):
    a, b, to_b, _ = pair
    states = []

    class Holder:
        """Python clears what it has in any order. When the finalizer runs, nothing of it was cleared yet."""

        def __init__(self):
            self.memory = bytearray(8)
            at = (ctypes.c_char * 8).from_buffer(self.memory)
            self.region = b.register_address(ctypes.addressof(at), 8, keep=self)
            self.at = at

        def __del__(self):
            try:
                a.write(to_b, here, remote).wait(SOON)
                states.append("reachable")
            except polyrail.Refused as refused:
                states.append(refused.why)

    holder, here = Holder(), a.register(bytearray(8))
    remote, gone = a.import_region(holder.region.describe()), weakref.ref(holder)
    a.write(to_b, here, remote).wait(SOON)
    del holder
    gc.collect()
    assert gone() is None and states == ["region_dropped"]


def test_what_is_closed_says_so_and_is_described_to_nobody(pair, tmp_path):
    a, memory = pair[0], bytearray(8)
    region, other = a.register(memory), a.register(memory)
    part = region[:4]
    assert "closed" not in repr(region) + repr(a)
    region.close()
    assert repr(region) == "<closed Region(8 bytes)>" and region.nbytes == 8
    for use in [region.describe, lambda: region[:4], lambda: part[:2]]:
        with pytest.raises(polyrail.RegionError, match="the region is closed") as closed:
            use()
        assert closed.value.reason == "closed" and closed.value.help == "register the memory again"
    a.close()
    assert repr(a).startswith("<closed Engine(a, ") and a.closed and a.stats()
    uses = {
        polyrail.RegionError: [other.describe, lambda: other[:4], lambda: a.register(memory)],
        polyrail.EngineError: [a.metadata, a.invitation, lambda: a.publish(tmp_path / "a")],
        polyrail.RendezvousError: [lambda: a.join("group")],
        polyrail.PeerError: [lambda: a.add_peer(pair[1].metadata())],
        polyrail.PostError: [lambda: a.notify(pair[2], b"x")],
    }
    for kind, use in [(kind, use) for kind, uses in uses.items() for use in uses]:
        with pytest.raises(kind, match="the engine is closed") as closed:
            use()
        assert closed.value.reason == "closed"
    with pytest.raises(polyrail.RegionError, match="the engine is closed"):
        a.register_address(id(memory), 8)


def test_a_transfer_keeps_the_regions_that_it_uses(pair):
    a, b, to_b, to_a = pair
    memory = numpy.zeros(8, dtype="u1")
    gone = weakref.ref(memory)
    receive = b.receive(to_a, 3, b.register(memory)[:])
    del memory
    a.send(to_b, 3, a.register(b"12345678", access="local")).wait(SOON)
    receive.wait(SOON)
    assert bytes(gone()) == b"12345678"
    del receive
    assert gone() is None
