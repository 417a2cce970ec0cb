"""Clusters: special registers, addresses, every access to another CTA's shared memory, its barriers, multicast."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import TYPES, Case, bits, cases_test, check, ints, ptx_of
from tests.vgpu.test_atomic import FLOATING, OPERATIONS, values

BLOCK = 64
U32 = np.uint32
SYNC = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
POLICIES = ("lazy", "timed", "random:1", "random:2")

#: %tile: the CTA's 8 KB; %at: the thread's 32 bytes of it; %next, %before: those in the CTAs beside it, in a ring
HEAD = """.shared .align 128 .b8 tile[8192]; .shared .align 8 .b64 bar;
  .reg .b32 %rank, %size, %to, %tile, %at, %next, %before, %t, %bar, %rbar, %w; .reg .b64 %g; .reg .pred %first, %done;
  mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank; mov.u32 %tile, tile; mov.u32 %bar, bar;
  mov.u32 %t, %tid.x; mad.lo.u32 %at, %t, 32, %tile; setp.eq.u32 %first, %t, 0;
  add.u32 %to, %rank, 1; rem.u32 %to, %to, %size; mapa.shared::cluster.u32 %next, %at, %to;
  mapa.shared::cluster.u32 %rbar, %bar, %to;
  add.u32 %to, %rank, %size; sub.u32 %to, %to, 1; rem.u32 %to, %to, %size; mapa.shared::cluster.u32 %before, %at, %to;
"""


def rolled(a: np.ndarray, by: int, cluster: int) -> np.ndarray:
    """Each thread's value from the CTA `by` ranks on in its cluster."""
    return np.roll(a.reshape(-1, cluster, BLOCK), -by, axis=1).reshape(-1)


def case(name, body, inputs, outputs, reference, cluster=2, clusters=1, **options) -> Case:
    n = BLOCK * cluster * clusters
    return Case(
        name, HEAD + body + SYNC, inputs, outputs, reference, block=BLOCK, n=n, cluster=cluster, draws=False, **options
    )


def count(cluster: int, clusters: int = 1) -> int:
    return BLOCK * cluster * clusters


# ---------------------------------------------------------------- ld and st
def accesses() -> list[Case]:
    """Read the next CTA's value, write the own one into the CTA before; 32-bit and generic addresses."""
    found = []
    for k, ty in enumerate(("b8", "u8", "s8", "b16", "u16", "s16", "f16", "b32", "u32", "s32", "f32", "b64", "u64",
                            "s64", "f64")):  # fmt: skip
        cluster = (2, 4, 8, 3, 1)[k % 5]
        memory = TYPES[ty][2]
        stored = memory.replace("s8", "u8")
        value = bits(ty, count(cluster, 2), k)
        body = f"""st.shared.{stored} [%at], %a; {SYNC}
          ld.shared::cluster.{memory} %d, [%next]; st.shared::cluster.{stored} [%before+16], %a; {SYNC}
          ld.shared.{memory} %e, [%at+16]; """
        inputs, outs = {"a": (ty, value)}, {"d": ty, "e": ty}

        def reference(a, cluster=cluster):
            return rolled(a, 1, cluster), rolled(a, 1, cluster)

        found.append(case(f"ld, st {ty}", body, inputs, outs, reference, cluster, 2))
        generic = body.replace("ld.shared::cluster", "cvta.shared::cluster.u64 %g, %n; ld")
        generic = generic.replace("st.shared::cluster", "cvta.shared::cluster.u64 %g, %p; st")
        generic = generic.replace("[%next]", "[%g]").replace("[%before+16]", "[%g+16]")
        generic = "cvt.u64.u32 %n, %next; cvt.u64.u32 %p, %before;" + generic
        found.append(case(f"generic {ty}", ".reg .b64 %n, %p;" + generic, inputs, outs, reference, cluster, 2))
    return found


def vectors() -> list[Case]:
    found = []
    for ty, n in (("u8", 4), ("u16", 2), ("b32", 2), ("b32", 4), ("f32", 4), ("b64", 2), ("f64", 2)):
        names = "abcd"[:n]
        results = "wxyz"[:n]
        source = ", ".join(f"%{x}" for x in names)
        target = ", ".join(f"%o{x}" for x in results)
        memory = TYPES[ty][2]
        body = f"""st.shared.v{n}.{memory} [%at], {{{source}}}; {SYNC}
          ld.shared::cluster.v{n}.{memory} {{{target}}}, [%next];
          st.shared::cluster.v{n}.{memory} [%before+16], {{{target}}}; {SYNC}
          ld.shared.v{n}.{memory} {{{target}}}, [%at+16]; """
        inputs = {x: (ty, bits(ty, count(4), 10 * k + n)) for k, x in enumerate(names)}

        def reference(**a):
            return tuple(rolled(x, 2, 4) for x in a.values())

        found.append(case(f"v{n}.{ty}", body, inputs, {f"o{x}": ty for x in results}, reference, 4))
    return found


# ---------------------------------------------------------------- atom and red
def atomics() -> list[Case]:
    """atom on the next CTA's cell gives what was there; red on the cell of the one before; both leave the result."""
    found = []
    for k, (op, ty, fn) in enumerate((*OPERATIONS, *FLOATING)):
        cluster = (2, 4)[k % 2]
        a, b = (np.resize(values(ty, seed), count(cluster)) for seed in (40 + k, 70 + k))
        memory = TYPES[ty][2]
        red = f"red.relaxed.cluster.shared::cluster.{op} [%before+16], %b;"
        if op.startswith("exch"):
            red = f"st.shared::cluster.{memory} [%before+16], %b;"
        body = f"""st.shared.{memory} [%at], %a; st.shared.{memory} [%at+16], %a; {SYNC}
          atom.relaxed.cluster.shared::cluster.{op} %d, [%next], %b; {red} {SYNC}
          ld.shared.{memory} %e, [%at]; ld.shared.{memory} %f, [%at+16]; """

        def reference(a, b, fn=fn, cluster=cluster):
            return rolled(a, 1, cluster), fn(a, rolled(b, -1, cluster)), fn(a, rolled(b, 1, cluster))

        inputs = {"a": (ty, a), "b": (ty, b)}
        departs = "adds the words as integers in another CTA's shared memory" if ty.endswith("16x2") else ""
        outs = {"d": ty, "e": ty, "f": ty}
        found.append(case(f"atom, red {op}", body, inputs, outs, reference, cluster, departs=departs))
    for ty in ("b32", "b64", "b16"):
        a, b = (bits(ty, count(2), seed) for seed in (3, 4))
        b[::2] = np.roll(a, BLOCK)[::2]  # half of the comparisons hold

        def swapped(a, b):
            there = rolled(a, 1, 2)
            return there, np.where(a == rolled(b, 1, 2), rolled(a, 1, 2), a)

        body = f"""st.shared.{ty} [%at], %a; {SYNC}
          atom.shared::cluster.cas.{ty} %d, [%next], %b, %a; {SYNC} ld.shared.{ty} %e, [%at]; """
        found.append(case(f"atom cas {ty}", body, {"a": (ty, a), "b": (ty, b)}, {"d": ty, "e": ty}, swapped))
    return found


def contended() -> list[Case]:
    """All threads of a cluster add to one word of the CTA of rank 0: each number is given once."""
    body = f"""mov.u32 %w, 0; @%first st.shared.u32 [%tile], %w; {SYNC} mapa.shared::cluster.u32 %to, %tile, 0;
      atom.relaxed.cluster.shared::cluster.add.u32 %d, [%to], 3; {SYNC} ld.shared::cluster.u32 %e, [%to]; """

    def compare(name, got, want, _):
        return np.sort(got) == np.sort(want) if name == "d" else got == want

    def reference(a):
        n = count(8)
        return np.arange(n, dtype=U32) * 3, np.full(n, 3 * n, U32)

    a = np.zeros(count(8), U32)
    return [case("contended", body, {"a": ("u32", a)}, {"d": "u32", "e": "u32"}, reference, 8, compare=compare)]


# ---------------------------------------------------------------- addresses
def addresses() -> list[Case]:
    """mapa and getctarank: register, symbol and generic operands, to every rank of a large cluster."""
    body = """.reg .b64 %wide, %own, %narrow; .reg .b32 %r<4>;
      rem.u32 %to, %t, %size; @%first st.shared.u32 [%tile+4], %rank; """ + SYNC + """
      mapa.shared::cluster.u32 %r0, tile, %to; ld.shared::cluster.u32 %d, [%r0+4];
      cvt.u64.u32 %narrow, %tile; cvta.shared.u64 %own, %narrow; mapa.u64 %wide, %own, %to; ld.u32 %e, [%wide+4];
      mapa.shared::cluster.u64 %narrow, %narrow, %to; ld.shared::cluster.u32 %f, [%narrow+4];
      getctarank.shared::cluster.u32 %h, %r0; getctarank.u64 %i, %wide; getctarank.shared::cluster.u32 %j, tile; """

    def reference(a):
        to = np.arange(len(a)) % BLOCK % 16
        own = np.arange(len(a)) // BLOCK
        return tuple(x.astype(U32) for x in (to, to, to, to, to, own))

    a = np.zeros(count(16), U32)
    return [case("mapa, getctarank", body, {"a": ("u32", a)}, dict.fromkeys("defhij", "u32"), reference, 16)]


# ---------------------------------------------------------------- mbarriers of other CTAs
def barriers() -> list[Case]:
    """Threads store into the next CTA and arrive at its barrier; each waits for its own barrier alone."""
    ready = f"""@%first mbarrier.init.shared.b64 [%bar], {{n}}; @%first fence.mbarrier_init.release.cluster; {SYNC}
      st.shared::cluster.u32 [%next], %a; {{arrive}}
      WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;
      ld.shared.u32 %d, [%at]; """
    remote = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%rbar]"
    expect = "@%first mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%rbar], 256;"
    forms = {
        "arrive": (BLOCK, remote + ";"),
        "arrive with a count": (3 * BLOCK, remote + ", 3;"),
        "arrive twice": (2 * BLOCK, remote + "; " + remote + ";"),
        "arrive_drop": (BLOCK, remote.replace("arrive.", "arrive_drop.") + ";"),
        "arrive.expect_tx": (1, expect + "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%rbar], 4;"),
        "expect_tx": (1, expect.replace("arrive.expect_tx.release", "expect_tx.relaxed").replace(" _,", "")
                      + "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%rbar], 4; bar.sync 0; @%first "
                      + remote + ";"),
    }  # fmt: skip
    found = []
    for k, (name, (n, arrive)) in enumerate(forms.items()):
        cluster = (2, 4, 3)[k % 3]
        a = ints("u32", count(cluster, 2), k)

        def reference(a, cluster=cluster):
            return rolled(a, -1, cluster)

        body = ready.format(n=n, arrive=arrive)
        # complete_tx by an instruction is for simulation only: ptxas takes it, a chip need not do anything
        silicon = "tx" not in name
        inputs, outs = {"a": ("u32", a)}, {"d": "u32"}
        found.append(case(f"remote {name}", body, inputs, outs, reference, cluster, 2, silicon=silicon))
    return found


# ---------------------------------------------------------------- bulk copies
def copies() -> list[Case]:
    """A multicast bulk copy by one CTA to those in a mask; copies from CTA to CTA with the barrier at the target."""
    found = []
    for mask in (0b0001, 0b1010, 0b0110, 0b1111):
        body = f"""@%first mbarrier.init.shared.b64 [%bar], 1; @%first fence.mbarrier_init.release.cluster;
          .reg .pred %mine, %send; .reg .b16 %mask; .reg .b64 %from; mov.u16 %mask, {mask}; mov.u32 %w, {mask};
          shr.u32 %w, %w, %rank; and.b32 %w, %w, 1; setp.eq.u32 %mine, %w, 1; mov.u32 %d, 0;
          setp.eq.and.u32 %send, %rank, 1, %first;
          @%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 512; {SYNC}
          @%send cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
              [%tile], [%src], 512, [%bar], %mask;
          @!%mine bra OVER;
          WAIT: mbarrier.try_wait.parity.shared.b64 %done, [%bar], 0; @!%done bra WAIT;
          mad.lo.u32 %w, %t, 8, %tile; ld.shared.u32 %d, [%w+4];
          OVER: """
        src = ints("b32", 128, mask)

        def reference(a, src, mask=mask):
            named = np.repeat([(mask >> k) & 1 for k in range(4)], BLOCK)
            return {"d": np.where(named, np.tile(src[1::2], 4), 0).astype(U32), "src": src}

        a = np.zeros(count(4), U32)
        found.append(
            case(f"multicast to {mask:#x}", body, {"a": ("u32", a)}, {"d": "u32"}, reference, 4, buffers={"src": src})
        )
    a = ints("u32", count(4), 9)
    body = f"""@%first mbarrier.init.shared.b64 [%bar], 1; @%first fence.mbarrier_init.release.cluster;
      @%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 256; mad.lo.u32 %w, %t, 4, %tile; st.shared.u32 [%w], %a;
      fence.proxy.async.shared::cta; {SYNC}
      add.u32 %to, %rank, 1; rem.u32 %to, %to, %size; mapa.shared::cluster.u32 %next, %tile, %to;
      @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
          [%next+1024], [%tile], 256, [%rbar];
      WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;
      ld.shared.u32 %d, [%w+1024]; """
    found.append(case("from CTA to CTA", body, {"a": ("u32", a)}, {"d": "u32"}, lambda a: rolled(a, -1, 4), 4))
    return found


CASES = [*accesses(), *vectors(), *atomics(), *contended(), *addresses(), *barriers(), *copies()]
test_cases = cases_test(CASES)


def test_every_policy():
    from dataclasses import replace

    for one in CASES:
        if one.name.startswith(("remote", "multicast", "from", "contended", "atom, red add.u32", "ld, st b32")):
            for policy in POLICIES:
                check(replace(one, policy=policy), "vgpu", "test_cluster", None)


# ---------------------------------------------------------------- registers
REGISTERS = [
    *(f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for axis in "xyz"),
    "%cluster_ctarank", "%cluster_nctarank",
]  # fmt: skip
_TEXT = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out) {directive}
{{
  .reg .b32 %x, %y, %z, %nx, %ny, %n, %v; .reg .b64 %out, %o; .reg .pred %p;
  ld.param.u64 %out, [out];
  mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z; mov.u32 %nx, %nctaid.x; mov.u32 %ny, %nctaid.y;
  mad.lo.u32 %n, %z, %ny, %y; mad.lo.u32 %n, %n, %nx, %x; mul.wide.u32 %o, %n, 60; add.u64 %out, %out, %o;
  {stores}
  mov.pred %p, %is_explicit_cluster; selp.u32 %v, 1, 0, %p; st.global.u32 [%out+56], %v;
  ret;
}}
"""


def registers(grid, cluster, directive: str = "", asked=None) -> np.ndarray:
    from tensorladder import vgpu

    stores = " ".join(f"mov.u32 %v, {r}; st.global.u32 [%out+{4 * k}], %v;" for k, r in enumerate(REGISTERS))
    out = np.zeros((int(np.prod(grid)), 15), U32)
    text = _TEXT.format(stores=stores, directive=directive)
    vgpu.launch(text, "kernel", grid, 1, [out], cluster=cluster if asked is None else asked)
    return out


def test_registers_of_three_dimensions():
    for cluster in ((2, 1, 1), (1, 4, 1), (2, 2, 2), (3, 1, 2), (4, 2, 2)):
        grid = tuple(n * c for n, c in zip((2, 3, 2), cluster, strict=True))
        want = []
        for z, y, x in np.ndindex(*grid[::-1]):
            place = (x, y, z)
            inside = [p % c for p, c in zip(place, cluster, strict=True)]
            rank = inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2])
            which = [p // c for p, c in zip(place, cluster, strict=True)]
            want.append([*inside, *cluster, *which, 2, 3, 2, rank, int(np.prod(cluster)), 1])
        assert np.array_equal(registers(grid, cluster), want), cluster


def test_the_directive_gives_the_cluster():
    want = registers((4, 2, 1), (2, 2, 1))
    directive = ".reqnctapercluster 2, 2, 1"
    assert np.array_equal(registers((4, 2, 1), (2, 2, 1), directive), want)
    assert np.array_equal(registers((4, 2, 1), (2, 2, 1), directive, asked=1), want)


def refused(words: str, *arguments, error=None, **options) -> None:
    import pytest

    from tensorladder.core.errors import TensorladderError

    with pytest.raises(error or TensorladderError, match=words):
        registers(*arguments, **options)


def test_launches_that_the_driver_refuses():
    refused("reqnctapercluster 2x2x1", (4, 2, 1), (2, 1, 1), ".reqnctapercluster 2, 2, 1")
    refused("maxclusterrank 2", (4, 2, 1), (4, 1, 1), ".maxclusterrank 2")
    refused("takes 16", (32, 1, 1), (32, 1, 1))
    refused("no multiple of the cluster", (5, 1, 1), (2, 1, 1))


# ---------------------------------------------------------------- errors
def fails(words: str, body: str, cluster: int = 2, policy: str = "eager") -> None:
    import pytest

    from tensorladder import vgpu
    from tensorladder.core.errors import KernelError

    one = case("x", body, {"a": ("u32", np.zeros(count(cluster), U32))}, {"d": "u32"}, None, cluster)
    out = np.zeros(count(cluster), U32)
    with pytest.raises(KernelError, match=words):
        vgpu.launch(
            ptx_of(one), "kernel", cluster, BLOCK, [one.inputs["a"][1], out], cluster=cluster, policy=policy, timeout=20
        )


def test_an_access_to_a_cta_that_has_exited():
    leave = "setp.eq.u32 %done, %rank, 1; @%done exit; "
    wait = "mov.u32 %w, 0; SPIN: add.u32 %w, %w, 1; setp.lt.u32 %done, %w, 2000; @%done bra SPIN; "
    nap = "nanosleep.u32 1000000; "
    words = "belongs to CTA 1 of this cluster, which has exited; "
    for policy in ("eager", "lazy", "timed"):
        fails(words + "ld.shared", leave + nap + "ld.shared::cluster.u32 %d, [%next];", policy=policy)
        fails(words + "st.shared", leave + nap + "st.shared::cluster.u32 [%next], %a;", policy=policy)
    fails(words + "atom", leave + wait + nap + "atom.shared::cluster.add.u32 %d, [%next], 1;")
    fails(words + "mbarrier", leave + nap + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%rbar];")


def test_what_lies_outside():
    far = "mapa.shared::cluster.u32 %next, %at, 2; ld.shared::cluster.u32 %d, [%next];"
    fails("belongs to no CTA of this cluster", far)
    fails("out of bounds: 4 bytes at shared address 0x10", "ld.shared::cluster.u32 %d, [%next+0x20000];")
    fails("misaligned", "ld.shared::cluster.u32 %d, [%next+2];")


def test_operations_on_the_own_barriers_alone():
    init = f"@%first mbarrier.init.shared.b64 [%bar], 64; {SYNC} "
    words = "is another CTA's: this works on the own ones alone; mbarrier"
    fails(words + ".init", "@%first mbarrier.init.shared.b64 [%rbar], 64;")
    fails(words + ".inval", init + "mbarrier.inval.shared.b64 [%rbar];")
    fails(words + ".try_wait", init + "mbarrier.try_wait.parity.shared.b64 %done, [%rbar], 0;")
    fails(words + ".test_wait", init + "mbarrier.test_wait.parity.shared.b64 %done, [%rbar], 0;")
    fails(words + ".arrive", init + ".reg .b64 %s; mbarrier.arrive.shared.b64 %s, [%rbar];")
