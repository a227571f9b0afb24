"""PyTorch's tensors, and the helpers for torch.distributed. Skipped where PyTorch is missing."""

import multiprocessing

import pytest
from conftest import SOON

torch = pytest.importorskip("torch")

SIZE = 3


def test_tensors_are_registered_by_their_pointer(pair):
    a, b, to_b, _ = pair
    source, target = torch.arange(1000.0), torch.zeros(10, 100)
    region = b.register(target[2:4])
    assert region.nbytes == 2 * 100 * 4
    a.write(to_b, a.register(source)[:800], a.import_region(region.describe())).wait(SOON)
    assert torch.equal(target[2:4].flatten(), source[:200]) and not target[4:].any()
    # The first dimension is the fastest one there: it is one block of bytes.
    assert a.register(target.T).nbytes == 10 * 100 * 4
    for strided in [target[:, :50], target.T[:50], torch.zeros(2, 3, 4).transpose(1, 2)]:
        with pytest.raises(BufferError, match="not contiguous: shape .*; register tensor.contiguous"):
            a.register(strided)
    with pytest.raises(TypeError, match='on "meta"; allowed: cpu, cuda'):
        a.register(torch.zeros(3, device="meta"))
    lazy = torch.zeros(3, dtype=torch.complex64).conj()
    with pytest.raises(BufferError, match="register tensor.resolve_conj"):
        a.register(lazy)
    assert a.register(lazy.resolve_conj()).nbytes == 24
    parameter = torch.nn.Parameter(torch.zeros(8))
    assert a.register(parameter, access="local").nbytes == 32


def test_a_tensor_stays_while_its_region_does(pair):
    a, b, to_b, to_a = pair
    target = torch.zeros(1 << 16)
    region = b.register(target)
    kept = target.data_ptr()
    target.set_(torch.zeros(4))
    del target
    # Other tensors take memory that was freed.
    others = [torch.ones(1 << 16) for _ in range(10)]
    assert all(other.data_ptr() != kept for other in others)
    source = torch.full((1 << 16,), 2.0)
    a.write(to_b, a.register(source), a.import_region(region.describe())).wait(SOON)
    assert all(torch.equal(other, torch.ones(1 << 16)) for other in others)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_are_written_and_read(pair):
    a, b, to_b, _ = pair
    source, target = torch.arange(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda").long()
    torch.cuda.current_stream().synchronize()
    region, back = b.register(target), torch.zeros(1 << 16).long()
    remote = a.import_region(region.describe())
    assert remote.is_on_device
    a.write(to_b, a.register(source), remote).wait(SOON)
    a.read(to_b, a.register(back), remote).wait(SOON)
    assert torch.equal(target, source) and torch.equal(back, source.cpu())


def one_rank(rank, rendezvous):
    import polyrail.torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=SIZE)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    with polyrail.torch.init(rails="127.0.0.1", env=False) as group:
        assert (group.rank, group.size, group.engine.closed) == (rank, SIZE, False)
        group.broadcast_params(model, src=1, timeout=SOON)
        torch.manual_seed(1)
        same = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
        for name, tensor in same.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name

        # More tensors than a message has parts, and one that is empty.
        many = [torch.full((3,), float(number * (rank == 0))) for number in range(2500)]
        many.append(torch.zeros(0))
        if rank == 0:
            group.send(many, dst=2, timeout=SOON)
        if rank == 2:
            group.recv(many, src=0, timeout=SOON)
            assert all((tensor == number).all() for number, tensor in enumerate(many))

        # Both ways at once, by a tag of their own.
        if rank != 1:
            mine, others = torch.full((4,), float(rank)), torch.zeros(4)
            work = group.isend(mine, 2 - rank, tag=5, timeout=SOON)
            group.recv(others, 2 - rank, tag=5, timeout=SOON)
            work.wait()
            assert work.done() and (others == 2 - rank).all()

        if rank == 0:
            group.send(torch.zeros(2), dst=1, timeout=SOON)
        if rank == 1:
            with pytest.raises(ValueError, match="rank 0 has 8 bytes for tensors of 16 bytes"):
                group.recv(torch.zeros(4), src=0, timeout=SOON)
        for wrong in [SIZE, -1, rank]:
            with pytest.raises(ValueError, match="allowed: 0 to 2, without"):
                group.send(torch.zeros(1), dst=wrong)
        with pytest.raises(ValueError, match="tag is -1; allowed"):
            group.isend(torch.zeros(1), (rank + 1) % SIZE, tag=-1)
        # Of some of the ranks, and all of them again: each group counts for itself.
        some = dist.new_group([0, 1])
        if rank != 2:
            with polyrail.torch.init(process_group=some, rails="127.0.0.1", env=False) as pair:
                pair.broadcast_params(torch.zeros(1), timeout=SOON)
        with polyrail.torch.init(rails="127.0.0.1", env=False) as again:
            again.broadcast_params(torch.zeros(1), timeout=SOON)
            dist.barrier()
        dist.barrier()
    dist.destroy_process_group()


def test_a_process_group_sends_receives_and_broadcasts(tmp_path):
    context = multiprocessing.get_context("spawn")
    rendezvous = f"file://{tmp_path}/rendezvous"
    ranks = [context.Process(target=one_rank, args=(rank, rendezvous)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(5 * SOON)
    assert [rank.exitcode for rank in ranks] == [0] * SIZE
