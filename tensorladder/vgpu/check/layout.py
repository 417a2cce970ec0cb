"""Memory layout of what the checker knows: byte offsets, as in machine.layout. All scalar fields are 64-bit.

`X_` a unit, `Y_` a CTA's slot in it, `Z_` a warp, `B_` an mbarrier, `F_` a finding's record, `K_` a component of the
vector clocks, and the cells of shadow memory.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L

# ---------------------------------------------------------------- unit
X_KMAX = 0  # components that fit in a clock
X_USED = 8  # components in use
X_CLOCK_BYTES = 16  # of one vector clock: 4 * KMAX
X_SLOTS = 24
X_WARPS = 32  # of a CTA
X_SIZE = 40  # CTAs of a cluster
# vector clocks, X_ROWS a warp: what it has seen, what of that the async proxy sees; both as of its last fence; the
# first as of its last tcgen05.fence::after_thread_sync; both of what relaxed reads have seen, with no fence since; the
# first as of its last proxy fence of shared memory
X_KNOWN = 48
ROWS, SCOPED_ROWS = 8, 16  # with both pairs once more for clusters and for CTAs
ROW_FENCED, ROW_TENSOR, ROW_PENDING, ROW_PROXY = 2, 4, 5, 7
ROW_NARROW = 8  # (fenced, pending) of the cluster, of the CTA: four rows each
X_COMPONENTS = 56  # K_ records
X_STARTS = 64  # u32 a component: its clock when the CTA that is there now began
X_Z = 72  # Z_ records of the warps, slot by slot
X_Y = 80  # Y_ records of the slots
X_B = 88  # B_ records of the mbarriers
# vector clocks, B_CLOCKS each: (seen, async proxy) of the phase that runs, of those that are complete; seen of all but
# the last
X_B_CLOCKS = 96
B_CLOCKS = 5
X_B_USED = 104
X_B_MAX = 112
X_B_SEEN = 120  # (phase, clock | instruction of the wait << 32) i64 a warp of the CTA each
X_SHARED = 128  # host address of slot 0's window
X_STRIDE = 136  # bytes from window to window
X_WINDOW = 144  # bytes in a window
X_UNIT = 152
X_ORDERED = 160  # one scheduler runs all CTAs: clusters can synchronise through global memory
# table of global allocations, sorted: (start, end, shadow, shadow of what comes before griddepcontrol.wait, lowest byte
# accessed, end of the bytes accessed, both from the shadow's first byte); shadow 0: read-only
X_RANGES = 168
RANGE_BYTES = 48
X_NRANGES = 176
X_RANGE = 184  # the row that was hit last
X_FINDINGS = 192  # F_ records
X_NFINDINGS = 200
X_HASH = 208  # open hash of the findings: 1 + index, i64
X_OVERFLOW = 216  # something did not fit: findings may be missing
X_ARENA = 384  # of the shadow of global memory (E_)
X_BARS = 232  # two vector clocks a named barrier, slot by slot
X_CLUSTERS = 240  # four vector clocks a cluster's slot: (seen, async proxy) of two generations
X_SYNC = 248  # table of addresses that synchronise: see SYNC_
X_SYNC_CLOCKS = 256
X_SYNC_USED = 264
X_STARTED = 272  # log of CTAs: (slot, clock, linear), i64
X_NSTARTED = 280
X_MEET = 288  # vector clocks of operations that warps issue together: MEETS x 2 a warpgroup
X_PAD = 296  # a vector clock of scratch, where X_EXECUTED is there
X_SPACE = 304  # of the access that is looked at: SPACE_*
X_PLACE = 312  # its slot, or start of its allocation
X_CELLS = 320  # address of its first cell, of the place's first byte
X_WARP = 328  # the warp (number in the unit) that accesses
X_LANES = 336
X_LAUNCH = 344
X_LO = 352  # bytes of the access, from the place's first
X_HI = 360
X_COPIES = 368  # whether there is a cp.async
X_ADVICE = 376  # rows of (accesses, units taken, least units) i64 by instruction (advice.py), 0: none
X_ROWS = 416
X_SCOPED = 424  # whether the kernel has scopes that are narrower than the GPU: ROW_NARROW is there
X_EDGES = 432  # ring of orderings that were too narrow: (slot of the CTA that released, that acquires, instruction)
X_NEDGES = 440
X_SYNC_FIRST = 448  # the table's first row
X_FENCES = 456  # rings of proxy fences (fences.py): FENCED_*
X_GRID = 464  # component of "the launch before is over", 0: the launch depends on none
X_LANE_LOG = 472  # logs of the warps' accesses since their lanes met (lanes.py)
X_VISITS = 480  # (clock, instruction) i32 by slot and warp of its cluster: its last access of the slot's window
X_STORED_SAME = 488  # lanes whose access left memory as it was (stores)
X_RELAXED = 496  # two vector clocks a warp: (seen, async proxy) of the phases that relaxed waits have seen
X_MARKS_A = 512  # rows of A that are undefined: whether any, then 256 bits (values.py), for two CTAs of a pair
X_MARKS_B = X_MARKS_A + 80  # columns of B, the same
MARKS = 40
X_UNDEFINED = X_MARKS_B + 80  # the reads since it was cleared met memory that nothing wrote
X_TAINTED = X_UNDEFINED + 8  # undefined values were stored to shared memory
X_TMEM_TAINTED = X_TAINTED + 8  # and to tensor memory
X_CROSS = X_TMEM_TAINTED + 8  # threads may access shared memory of other CTAs (scopes.py)
X_DOUBTS = X_CROSS + 8  # a vector clock a warp: of V what it knows without waits of too narrow a scope
X_DOUBT = X_DOUBTS + 8  # that of the warp that accesses, 0: there is no doubt
X_B_OWN = X_DOUBT + 8  # two vector clocks an mbarrier: phase that runs, complete ones, without what is doubtful
X_BAR_DOUBTS = X_B_OWN + 8  # a vector clock a named barrier: the same
X_CARRIES = X_BAR_DOUBTS + 8  # what is accessed takes undefined bytes along: to read them is no finding
X_LEFT = X_CARRIES + 8  # what releases by some lanes of a warp left out (elected.py)
X_ANY_LEFT = X_LEFT + 8  # whether there is any
X_COPY_LOG = X_ANY_LEFT + 8  # cp.async by lane (lanes.py), 0: there are none
X_EDGE_CLOCKS = X_COPY_LOG + 8  # what each would have handed on (V)
X_EXECUTED = X_EDGE_CLOCKS + 8  # a vector clock a warp: what was executed before (executed.py), 0: V says it
X_B_EXECUTED = X_EXECUTED + 8  # two an mbarrier: phase that runs, complete ones
X_BAR_EXECUTED = X_B_EXECUTED + 8  # one a named barrier
X_CLUSTER_EXECUTED = X_BAR_EXECUTED + 8  # two a cluster's slot: generations of its barrier
X_SENT = X_CLUSTER_EXECUTED + 8  # copies from a slot's shared memory to its peers' (exits.py)
X_BYTES = X_SENT + 8

FINDINGS = 1024
ADVICE_ROWS = 1 << 16
HASH_SLOTS = 8192
STARTED = 1 << 16
MEETS = 128

#: spaces of a finding
SPACE_GLOBAL, SPACE_SHARED, SPACE_TMEM, SPACE_REGISTERS = 0, 1, 2, 3

# ---------------------------------------------------------------- slot of a CTA
Y_CELLS = 0  # shadow of the window: CELL bytes for 16
Y_ARENA = 8  # E_ record: blocks of split cells
Y_BARRIER_MAP = 72  # i32 for each 8 bytes of the window: 1 + number of its mbarrier
Y_LINEAR = 80  # the CTA
Y_TMEM = 88  # shadow of its SM's tensor memory
Y_WAITING = 96  # i64 x 16: warps that wait at a named barrier
Y_GENERATION = 224  # of the cluster's barrier, in the slot of its first CTA: the newest that was arrived at
Y_CTA = 232
Y_UNDEFINED = 240  # a byte for each of the window: what was stored there is undefined
Y_TMEM_UNDEFINED = 248  # tensor memory (behind its T_DATA) of ones for undefined bits
Y_BAR_DOUBT = 256  # i64 x 16: Z_DOUBT of who arrived at a named barrier
Y_BYTES = 384

# ---------------------------------------------------------------- arena of blocks
E_FREE = 0  # first free block
E_CHUNK = 8  # chunk that blocks are taken from
E_AT = 16  # blocks taken from it
E_FIRST = 24  # first chunk
BLOCK = 1024
CHUNK_BLOCKS = 255

# ---------------------------------------------------------------- warp
Z_CP = 0  # component of its cp.async
Z_CP_SEQ = 8  # cp.async issued
Z_WGMMA = 16  # component of its warpgroup's wgmma (first warp of the group)
Z_ST = 24  # component of its tcgen05.st
Z_ST_SEQ = 32
Z_DIRTY = 40  # lanes that wrote shared memory since their last proxy fence
Z_LD_OPEN = 48  # instruction + 1 of a tcgen05.ld that was not waited for
Z_WGMMA_FENCE = 64  # a wgmma.fence was executed since registers of wgmma were changed last
Z_WGMMA_SEQ = 72  # number of the last wgmma that it issued, plus 1
Z_WGMMA_BASE = 96  # wgmma of the CTAs that ran there before (first warp of the group)
Z_BEFORE = 56  # instruction + 1 of a tcgen05.ld or .st since its last tcgen05.fence::before_thread_sync
Z_CHANGED = 112  # instruction + 1 that changed registers of wgmma last
Z_ORIGIN = 120  # 1 + site of what gave it an undefined value last
Z_STORE = 104  # what its last bulk store was: a hash
Z_INIT_FENCE = 80  # clock of its last fence that makes mbarrier.init visible to the async proxy or the cluster
Z_CP_RING = 128  # i32 x 64: Z_CP_SEQ when a group was committed
Z_WGMMA_RING = 384  # i32 x 64
Z_BULK = 640  # i32 x 32: component of a lane's bulk copies having read; the next one is of their being complete
Z_BULK_SEQ = 768  # i32 x 32
Z_TC = 896  # i32 x 32: component of a lane's tcgen05 operations
Z_TC_SEQ = 1024  # i32 x 32
Z_BULK_RING = 1152  # i32 x 32 x 32
Z_BULK_LAST = 1152 + 4096  # i32 x 32: instruction of a lane's last bulk store
Z_TC_LAST = Z_BULK_LAST + 128  # i32 x 32: instruction of a lane's last tcgen05.mma
# (operation, instruction) i32 x 2 by register: its place in the frame, a hash
Z_REGISTERS = Z_TC_LAST + 128
REGISTERS = 1024
Z_PENDING = Z_REGISTERS + 8 * REGISTERS  # bits of levels (order.py) whose ROW_PENDING holds something
Z_FENCE = Z_PENDING + 8  # its last fence: instruction | level << 32
Z_SAW = Z_FENCE + 8  # slot + 1 of the CTA that wrote the flag it read last
Z_ST_FENCED = Z_SAW + 8  # (Z_ST_SEQ, its clock) at its last two tcgen05.fence::before_thread_sync
Z_DOUBT = Z_ST_FENCED + 32  # 1 + instruction of its last wait of too narrow a scope
Z_RELAXED = Z_DOUBT + 8  # whether it has waited relaxed
Z_STORE_CLOCK = Z_RELAXED + 8  # its clock in cycles at its last bulk store
Z_ARRIVAL = Z_STORE_CLOCK + 8  # of the arrival that it executed last: rounds.arrival_sign
Z_BYTES = Z_ARRIVAL + 8

RING = 64
BULK_RING = 32

# ---------------------------------------------------------------- component
K_KIND = 0
K_SLOT = 8
K_WARP = 16  # in its CTA; the mbarrier's number
K_LANE = 24
K_BYTES = 32
(K_IS_WARP, K_IS_MBARRIER, K_IS_CP, K_IS_BULK_READ, K_IS_BULK, K_IS_WGMMA, K_IS_TC, K_IS_ST,
 K_IS_GRID) = range(1, 10)  # fmt: skip

# ---------------------------------------------------------------- mbarrier
B_COMPONENT = 0
B_PHASES = 8  # complete ones, never reset
B_INIT = 16  # epoch of its initialisation, 0: none
B_INIT_SITE = 24
B_SLOT = 32
B_OFFSET = 40
B_BASE = 48  # B_PHASES when it was initialised
B_COUNT = 56
B_ARRIVED = 64  # site of the last arrival
B_FLIPPED = 72  # site of the arrival that completed the last phase
B_SIGN = 80  # of the execution of an instruction that arrived last
B_SIGN_PHASE = 88  # B_PHASES at its first lane
B_DOUBT = 96  # other CTAs arrive here: -1, or Z_DOUBT of who arrived; 0: neither
B_BYTES = 128

# ---------------------------------------------------------------- cell: 16 bytes of shared or global memory, or less
CELL = 64
CELL_WRITE = 0  # epoch of the last write; negative: split
CELL_READ = 8  # epochs of up to three reads since (split: address of the block, level)
CELL_SET = 32  # address of a block with more reads, 0: none
CELL_SITES = 40  # u32 x 4: of the write and of the reads
CELL_VALUE = 56  # of global memory: a sum of what the last write stored, where that was a plain store (alike.py)
LEVEL_WORDS, LEVEL_BYTES = 1, 2
SET_MOST = 60  # reads in a block: count, then (epoch, site) each

# ------------------------------------------------------------ epoch: (component + 1) << 48 | clock << 16 | lane << 8
EPOCH_ASYNC = 1  # by the async proxy
EPOCH_STRONG = 2  # atomic, or stronger than weak
EPOCH_TENSOR = 4  # tcgen05.mma, .cp, .shift: pipelined with each other
EPOCH_CTA = 8  # strong, but for its CTA's threads alone
EPOCH_CLUSTER = 16  # strong, but for its cluster's threads alone
EPOCH_MAP = 32  # tensormap.cp_fenceproxy: a write that is released to the tensor map proxy

# ---------------------------------------------------------------- finding
F_CODE = 0
F_IID = 8
F_SITE = 16  # of the access that showed it: site | lanes << 32
F_EPOCH = 24
F_OTHER_SITE = 32
F_OTHER_EPOCH = 40
F_SPACE = 48
F_PLACE = 56  # slot, or start of the allocation
F_LO = 64
F_HI = 72
F_A = 80
F_B = 88
F_COUNT = 96  # how often it was seen
F_LINEAR = 104  # CTA of the access
F_OTHER_LINEAR = 112  # CTA that is in the other access's slot now
F_BYTES = 128

_NAMED = set(globals())
#: what can be found (words.py says it in words)
(RACE_WW, RACE_WR, RACE_RW, PROXY, PROXY_WRITE, UNINITIALISED, BARRIER_NOT_VISIBLE, BARRIER_NOT_FENCED, BARRIER_TWICE,
 PHASE_ALIAS, TX_LEFT, STORE_AT_EXIT, REMOTE_AFTER_EXIT, WAIT_LD, AFTER_SYNC, BEFORE_SYNC, COMMIT_OTHER_LANE,
 REGISTERS_IN_FLIGHT, REGISTERS_WRITTEN,
 WGMMA_NO_FENCE, TMEM_FREED, TWICE_FREED, SHADOW_FULL, BARRIER_REINIT,
 ARRIVALS_LEFT, NOT_COMMITTED,
 LATE_ARRIVAL, SPLIT_ARRIVAL, LANES_ABSENT, MASKS_DIFFER, BARRIER_APART, SETMAXNREG_PART,
 LANES_ELSEWHERE, PHASE_SKIPPED, UNDEFINED_STORED, UNDEFINED_ADDRESS, UNDEFINED_BRANCH, UNDEFINED_OPERAND,
 UNDEFINED_COPIED, RACE_SAME) = range(1, 41)  # fmt: skip
(MAP_NOT_RELEASED, MAP_NOT_ACQUIRED, PROXY_GLOBAL, ST_NOT_FENCED, LANES_RACE, LANES_TOGETHER,
 LANES_STORE, WAIT_NARROW, LANES_HANDED, LANES_FREED, PROXY_LATE, LANES_COPIED,
 LANES_AFTER, PROXY_COPIED, SENT_AT_EXIT,
 CANCEL_NOT_FENCED, BARRIER_TOGETHER) = range(64, 81)  # fmt: skip
#: their names
RULES: dict[int, str] = {
    value: name for name, value in globals().items() if name not in _NAMED and isinstance(value, int)
}

# ----------------------- copies from a slot's shared memory to another CTA's of its cluster: how many, then by mbarrier
SENT_MOST = 16
SENT_COMPONENT, SENT_CLOCK, SENT_SITE = range(0, 24, 8)  # the mbarrier's, its phase, the newest copy's
SENT = 24
SENT_BYTES = 8 + SENT_MOST * SENT

# ---------------------------------------------------------------- addresses that synchronise
SYNC_SLOTS = 4096  # hash slots: (address and whose level, index of its two clocks, narrow release: place), i64
SYNC_BYTES = 24
SYNC_MOST = 1024
EDGES = 64

# ---------------------------------------------------------------- rings of proxy fences
FENCED_ASYNC, FENCED_MAP_RELEASE, FENCED_MAP_ACQUIRE = range(3)
FENCE_MOST = 64
FENCE_HEAD = 64 + 24 * FENCE_MOST

# ---------------------------------------------------------------- log of a warp's accesses by lane
LOG_HEAD, LOG_MOST = 64, 16  # of writes, and as many of reads
(ENTRY_LO, ENTRY_HI, ENTRY_LANES, ENTRY_SIZE, ENTRY_WHAT, ENTRY_IID, ENTRY_APART,
 ENTRY_COMPONENT, ENTRY_CLOCK,  # of its epoch
 ENTRY_TOGETHER,  # all lanes have executed an .aligned instruction since
 ENTRY_RELEASED,  # lanes that have released since
 ENTRY_NUMBER,
 ENTRY_COLLECTIVE) = range(0, 104, 8)  # lanes that a shfl, vote, redux or match has had together since  # fmt: skip
ENTRY_BLOCKS = 104  # a bit for each 16 bytes that lanes touch, by their place in 4 KB: 256 bits
ENTRY_ADDRESSES = 136  # i64 x 32
ENTRY_SEEN = ENTRY_ADDRESSES + 256  # u32 x 32: lanes that a lane's access comes before
ENTRY = ENTRY_SEEN + 128
LOG_BYTES = LOG_HEAD + 2 * LOG_MOST * ENTRY
LOG_NUMBER = 16  # entries so far
LOG_BLOCKS = 24  # ENTRY_BLOCKS of the access that is looked at

# ---------------------------------------------------------------- what releases of a warp left out
LEFT_HEAD, LEFT_MOST = 64, 16
(LEFT_COMPONENT, LEFT_CLOCK,  # the access's
 LEFT_FROM, LEFT_UNTIL,  # clocks of the warp: of the release, of when the lanes met
 LEFT_LO, LEFT_HI,  # bytes (host)
 LEFT_LANES, LEFT_ENTRY, LEFT_NUMBER, LEFT_IID) = range(0, 80, 8)  # fmt: skip
LEFT = 80
LEFT_BYTES = LEFT_HEAD + LEFT_MOST * LEFT

# ---------------------------------------------------------------- a warp's cp.async by lane: how many, then the newest
COPY_HEAD, COPY_MOST = 64, 32
COPY_SEQ, COPY_LANES, COPY_WAITED, COPY_SIZE, COPY_IID, COPY_LO, COPY_HI = range(0, 56, 8)
COPY_ADDRESSES = 64
COPY = COPY_ADDRESSES + 256
COPY_BYTES = COPY_HEAD + COPY_MOST * COPY

TMEM_BLOCKS = 8  # of 16 lanes
TMEM_CELLS = TMEM_BLOCKS * L.TMEM_COLUMNS
# behind the cells: products into one accumulator, one after the other, whose cells are yet to be stamped
R_COLUMN = 0
R_COUNT = 8  # columns, 0: no region is open
R_BLOCKS = 16
R_EPOCH = 24
R_SITE = 32
R_BYTES = 64
