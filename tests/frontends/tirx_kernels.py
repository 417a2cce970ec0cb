"""Kernels in TIRx for the front end's tests. TVM reads them from this file."""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx


@T.prim_func
def scale(x_ptr: T.handle, y_ptr: T.handle, factor: T.float32):
    n = T.int32()
    x = T.match_buffer(x_ptr, (n,), "float32")
    y = T.match_buffer(y_ptr, (n,), "float32")
    T.device_entry()
    block = T.cta_id([T.ceildiv(n, 128)])
    thread = T.thread_id([128])
    i = T.meta_var(block * 128 + thread)
    if i < n:
        y[i] = x[i] * factor


@T.prim_func
def ranks(x: T.Buffer((64,), "int32")):
    T.device_entry()
    block = T.cta_id([4])
    rank = T.cta_id_in_cluster([2])
    thread = T.thread_id([16])
    x[block * 16 + thread] = rank


def tma_copy(m, n, element):
    """x to y by TMA, boxes of 16 rows by 64 columns."""

    @T.prim_func
    def kernel(x: T.Buffer((m, n), element), y: T.Buffer((m, n), element)):
        T.device_entry()
        row, column = T.cta_id([-(-m // 16), -(-n // 64)])
        T.thread_id([32])
        smem = T.SMEMPool()
        tile = smem.alloc_tcgen05_mma_AB((16, 64), element)
        full = smem.alloc((1,), "uint64", align=8)
        smem.commit()
        rows, columns = T.meta_var(row * 16), T.meta_var(column * 64)
        if T.cuda.elect_sync():
            T.ptx["mbarrier.init.shared.b64"](full.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](full.ptr_to([0]), T.uint32(16 * 64 * 2))
            landed = T.meta_var({"dispatch": "tma_auto", "mbar": full.ptr_to([0])})
            Tx.copy_async(tile[:, :], x[rows : rows + 16, columns : columns + 64], **landed)
            T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
            Tx.copy_async(y[rows : rows + 16, columns : columns + 64], tile[:, :], dispatch="tma_auto")
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def unaligned():
    """Rows of 10 bytes, which no tensor map takes."""
    return tma_copy(32, 5, "float16")


@T.prim_func
def calls_the_host(x: T.Buffer((64,), "int32")):
    T.evaluate(T.call_packed("something.else", 1))
    T.device_entry()
    T.cta_id([1])
    thread = T.thread_id([64])
    x[thread] = 1


FACTOR = 2


def make(n):
    """x[i] = FACTOR * i."""

    @T.prim_func
    def kernel(x: T.Buffer((n,), "float32")):
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([n])
        x[thread] = T.Cast("float32", thread * FACTOR)

    return kernel
