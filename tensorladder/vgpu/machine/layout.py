"""Memory layout of the machine's state: byte offsets shared by generated code and the native runtime.

Everything is plain memory, addressed in bytes, so that code from the PTX compiler and from numba see the same thing.
All scalar fields are 64-bit. `W_` a warp, `C_` a CTA, `L_` a launch as one worker sees it, `U_` a unit (the CTAs that
one scheduler runs together), `A_` an asynchronous operation.
"""

from __future__ import annotations

LANES = 32

# ---------------------------------------------------------------- addresses (PTX ISA, "State Spaces")
#: generic windows lie outside the host's 47-bit range; a generic global address is the host address
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
WINDOW_MASK = 0xFF << 56
#: the first KB of a CTA's shared window belongs to the system; 32-bit addresses are rank << 24 | offset
SHARED_RESERVED = 1024
RANK_SHIFT = 24

# ---------------------------------------------------------------- warp
W_LIVE = 0  # lanes that exist and have not exited
W_READY = 8  # live lanes that are not blocked
W_MASK = 16  # the lane group that runs
W_CLOCK = 24  # cycles
W_LIMIT = 32  # yield at a back-edge when CLOCK reaches this
W_ERROR = 40  # non-zero: stop (the details are in the launch)
W_FRAME = 48
W_CTA = 56
W_LAUNCH = 64
W_LOCAL = 72  # local memory of lane 0
W_LOCAL_SIZE = 80  # bytes a thread
W_WARPID = 88
W_LO = 96  # the global range that was hit last: [lo, hi)
W_HI = 104
W_SHARED = 112  # host address of this CTA's window (offset 0)
W_SHARED_SIZE = 120  # bytes in the window, reserved part included
W_LAST_PC = 136  # where the group that ran last stands
W_PROGRESS = 144  # counts effects that others can see
W_UNIT = 152
W_HASH = 160  # of a past state of the registers, to see a spinning warp
W_RANK = 168  # %cluster_ctarank
W_IID = 176  # instruction of the last blocking call
W_FRAME_BYTES = 184
W_PARAMS = 192
W_SPINS = 200
W_STATE = 208  # 0 runs, 1 blocked (as the record has it), 2 done
W_SMEM_BASE = 216  # rank << RANK_SHIFT: added to shared offsets
W_KERNEL = 232  # address of the compiled kernel
W_MAXNREG = 248  # registers a thread now, as far as setmaxnreg goes; 0: not known
W_PC = 256  # i32 x 32
W_WAIT = 384  # i32 x 32, kind of wait
W_WAIT_A = 512  # i64 x 32
W_WAIT_B = 768  # i64 x 32
W_TID_X = 1024  # i32 x 32
W_TID_Y = 1152
W_TID_Z = 1280
W_CP_GROUP = 1408  # i32 x 32: the open cp.async group
W_BULK_GROUP = 1536  # i32 x 32: the open bulk group
W_CLUSTER_ARRIVED = 1664  # lanes that have arrived in the cluster barrier's present generation
W_CLUSTER_DONE = 1672  # lanes whose generation is complete and that have not waited for it yet
W_CARRY = 1680  # CC.CF of the lanes, a bit each, i32
W_CARRY_UNDEFINED = 1684  # lanes whose CC.CF nobody has set, i32 (checked variant)
W_REPEATS = 1688  # the warp has been in the state of W_HASH again
W_WGMMA_GROUP = 1696  # the open wgmma group
W_WGMMA_SEQ = 1704  # wgmma.mma_async issued so far
W_STARVED = 1712  # rounds that it is left out yet (random)
W_SETMAXNREG = 1720  # setmaxnreg executed << 32 | 1 + the last one's instruction
W_PASSED = 1728  # lanes that ran past a collective at which others wait for them (checked variant)
W_PASSED_IID = 1736  # that collective
W_PASSED_AT = 1744  # what they went on with
W_UNDEFINED = 1752  # what the last load read may be undefined (checked variant)
W_STORED = 1760  # what the last store stored, lane vectors, and its elements' bytes (where a checker is there)
W_STORED_SIZE = 1768
W_RETRY = 1824  # lanes that are to execute the instruction they wait at again: no breakpoint is hit anew
W_DONE_CLOCK = 1832  # of its last operation that took effect (timed)
W_ALIGNED = 1848  # since the checker looked last: 1: an .aligned instruction, lanes of a shuffle or vote << 8 (checked)
W_STORED_SAME = 1840  # lanes whose store, which the checker is yet to hear of, left memory as it was
W_SCRATCH = 1856  # 33 KB for operands of runtime calls: lane vectors, 256 bytes each (tcgen05.ld takes 128 and more)
SCRATCH_BYTES = 132 * 256
W_BYTES = W_SCRATCH + SCRATCH_BYTES

# what a lane can wait for (W_WAIT)
WAIT_NONE = 0
WAIT_MEET = 1  # other lanes at the same collective; A = lanes needed
WAIT_BAR = 2  # named barrier A to leave generation B
WAIT_MBAR = 3  # mbarrier at host address A to complete the phase of parity B
WAIT_CP = 4  # cp.async groups up to A done
WAIT_BULK = 5  # bulk groups up to A done
WAIT_BULK_READ = 6  # bulk groups up to A have read their source
WAIT_TIME = 7  # clock A
WAIT_MBAR_STATE = 8  # mbarrier at A to leave the phase of token B
WAIT_CLUSTER = 9  # cluster barrier to leave generation B
WAIT_WARP = 10  # bar.warp.sync: the lanes of mask A
WAIT_BAR_WARP = 11  # the other lanes of the warp at barrier A (low byte; operation above), thread count B
WAIT_BAR_RED = 12  # bar.red: named barrier A to leave generation B // 8 (operation B % 8)
WAIT_RESULT = 13  # not blocked: a bar.red that is to be executed again finds its result in A
WAIT_TIMED_OUT = 15  # a suspended try_wait that is to return false
WAIT_WGMMA = 16  # wgmma groups up to A done
WAIT_TMEM_ALLOC = 17  # A columns of tensor memory
WAIT_TMEM_STORE = 18  # the warp's tcgen05.st done
WAIT_GRID = 20  # griddepcontrol.wait: the grids before the launch A
WAIT_REGISTERS = 21  # setmaxnreg.inc: A registers a thread

# ---------------------------------------------------------------- CTA
C_SHARED = 0  # host address of the window
C_SHARED_SIZE = 8
C_CTAID = 16  # i64 x 3
C_RANK = 40
C_UNIT = 48
C_WARPS = 56  # address of the first warp
C_NWARPS = 64
C_LIVE_WARPS = 72
C_SMID = 80
C_MBAR_MAP = 88  # bitmap: which 8-byte words of the window are initialised mbarriers
C_LAUNCH = 96
C_DONE = 104
C_NTHREADS = 112
C_CLUSTERID = 120  # i64 x 3
C_LINEAR = 144
C_BAR = 160  # 16 named barriers x 4 i64: arrived threads, expected (0: all), generation, true | false << 32 of bar.red
C_BAR_STRIDE = 32
C_CLUSTER_BAR = 704  # generation of the cluster's barrier, in the CTA of rank 0
C_TMEM = 712  # tensor memory of its SM (T_), 0 on architectures without
C_TENSOR_CLOCK = 720  # when its tensor cores are free (timed)
C_TRIGGERED = 728  # it lets dependent launches start (griddepcontrol.launch_dependents), or has exited
C_TMEM_NO_PERMIT = 736  # the CTA has executed tcgen05.relinquish_alloc_permit
C_TMEM_COLUMNS = 744  # of its last allocation, 0 before the first
C_TMEM_FREED = 752  # i8 a granule: columns / 32 of what began there and was deallocated
C_TMEM_WANT = 768  # columns that a waiting tcgen05.alloc of a CTA pair asks for
C_TMEM_GRANT = 776  # 1 + the column that the peer's tcgen05.alloc took for it
C_CLC_FAILED = 784  # it has seen that a clusterlaunchcontrol.try_cancel failed
C_STARVED = 792  # rounds that it is left out yet (random)
C_MBAR_CLOCK = 1000  # latest arrivals at mbarriers, 2 i64 (by phase) for each 8 bytes of the window (timed)
C_BAR_CLOCK = 1024  # the same of named barriers
C_BYTES = 1280

# ---------------------------------------------------------------- launch (read-only for workers, but for errors)
L_GRID = 0  # i64 x 3
L_BLOCK = 24
L_CLUSTER = 48
L_PARAMS = 72  # host address of the parameter block
L_RANGES = 80  # host address of the range table: (start, end, flags) x n, sorted
L_NRANGES = 88
L_SYMBOLS = 96  # host addresses of module variables, i64 each
L_ERROR = 104  # code of the first error
L_ERROR_IID = 112
L_ERROR_LANE = 120
L_ERROR_WARP = 128
L_ERROR_ADDR = 136
L_ERROR_A = 144
L_ERROR_B = 152
L_ERROR_CTA = 160  # i64 x 3
L_DYNAMIC_SMEM = 184
L_TOTAL_SMEM = 192
L_NSMID = 200
L_POLICY = 208
L_SEED = 216
L_LATENCY = 224  # host address of the latency table
L_NEXT_CTA = 232
L_PRINT = 240  # print buffer
L_PRINT_SIZE = 248
L_PRINT_USED = 256
L_STOP = 264  # set by the host to stop (time-out, other worker's error)
L_HOOKS = 272  # event buffer of the checked variant
L_HOOKS_SIZE = 280
L_HOOKS_USED = 288
L_GRIDID = 304
L_CLOCK_KHZ = 312
L_NUMERICS = 320  # of matrix instructions: NUMERICS_F32, ...
L_TIME0 = 328  # %globaltimer at clock 0
L_CLOCKED = 336  # the kernel reads a clock: time alone may end a loop
L_DEPENDS = 344  # launch before, whose end griddepcontrol.wait waits for; 0: none, or all before have ended
L_COMPLETE = 352  # all its CTAs have run, or were cancelled
L_TRIGGERED = 360  # CTAs that let dependent launches start, have exited, or were cancelled
L_FOLLOWED = 368  # a dependent launch comes next in the stream
L_CHECK = 376  # address of the hazard checker's tl_check, 0: none
L_REGISTERS = 384  # registers a thread starts with, where setmaxnreg moves them; 0: it has no effect
L_SHADOWED = 392  # local memory has shadows behind it (checked variant)
L_BREAK = 472  # address of the function that is told that a warp has come to a breakpoint
L_TRACE = 480  # event buffer of `trace`, 0: none
L_TRACE_SIZE = 488
L_TRACE_USED = 496
L_BYTES = 512

RANGE_BYTES = 24
RANGE_WRITE = 1

# ---------------------------------------------------------------- unit: CTAs that one scheduler runs
U_LAUNCH = 0
U_CTAS = 8
U_NCTAS = 16
U_OPS = 24  # pool of asynchronous operations
U_NOPS = 32  # capacity
U_COUNT = 48  # pending
U_SEQ = 56
U_CLOCK = 64
U_RNG = 72
U_ORDER = 88  # i64 indices of pending operations, in order of issue
U_FREE = 96  # stack of free slots
U_NFREE = 104
U_TMA_CLOCK = 112  # when the TMA unit is free (timed)
U_ROUND = 128  # quiescent rounds in all
U_GROUP = 136
U_LOWEST = 144  # of the last round: the lowest clock of a warp that can run
U_SPINNING = 152  # of the last round: warps that used up their slices with nothing to show for it
U_DONE = 160  # all CTAs have run
U_BATCH = 168  # clusters that start together once all before them are done, 0: each slot is filled when it is free
U_COST = 184  # of an SM's room, a CTA's part (G_ROOM)
U_LATE = 192  # a cluster that could start will do so in a later round
U_MATRIX = 232  # buffer of MATRIX_BYTES
U_INSTRS = 240  # warp instructions run
U_CHECK = 248  # what the hazard checker knows of this unit
U_NOW = 256  # clock of the effect that happens, 0: warps act (timed)
U_AGENT = 264  # 1 + number of that effect's event, or 0
U_LAST_ARRIVAL = 272
U_BYTES = 512

# ---------------------------------------------------------------- buffer of matrix products (U_MATRIX)
MATRIX_TILE = 4 * 256 * 32  # bytes of an operand, unpacked
MATRIX_BYTES = 4 * MATRIX_TILE

# ---------------------------------------------------------------- group: units of successive launches, interleaved
G_UNITS = 0  # address of an array of units, oldest launch first
G_COUNT = 8
G_MORE = 16  # dependent launches that the host has yet to bring
G_ROOM = 24  # what is free of the SMs, ROOM each
G_STALLED = 32  # quiescent rounds since something happened
G_SAVED = 40  # the round in which the warps' W_HASH were taken
G_NEWS_CLOCK = 48  # clock at which something happened last
G_BYTES = 64
ROOM = 1 << 20
#: launches of a group that run at a time
MOST_UNITS = 8

# ---------------------------------------------------------------- tensor memory of an SM
TMEM_LANES = 128
TMEM_COLUMNS = 512  # of 32 bits
TMEM_GRANULE = 32  # columns; what is allocated is a power of two of at least this
TMEM_ROW = 4 * TMEM_COLUMNS + 64  # bytes from lane to lane: off the power of two, for the host's caches
T_OWNER = 0  # i64 a granule: the CTA that has it, 0 for none
T_COLUMNS = 128  # i64 a granule: columns of the allocation that begins there, 0 for none
T_IID = 256  # i64 a granule: the instruction that allocated them
T_LOCK = 384  # the CTA that has the permit to allocate, 0 for none
T_DATA = 512
T_BYTES = T_DATA + TMEM_LANES * TMEM_ROW

# ---------------------------------------------------------------- asynchronous operation
A_KIND = 0
A_WARP = 8
A_LANES = 16  # lanes that issued it
A_GROUP = 24
A_READY = 32  # clock at which it may take effect
A_SEQ = 40
A_IID = 48
A_STAGE = 56  # 0 issued, 1 source read (stores), 2 done
A_MBAR = 64  # host address of the mbarrier, 0 for none
A_BYTES_TX = 72
A_SRC = 80
A_DST = 88
A_SIZE = 96
A_MAP = 104  # tensor map, host address
A_COORD = 112  # i64 x 5
A_OP = 152  # reduction and type
A_CTA = 160
A_FLAGS = 168
A_BUFFER = 176  # staging for data that was read before it is written
A_QUEUE = 184  # operations of one queue take effect in order; 0: of none
A_HELD = 192  # non-zero: not issued in full yet, cannot take effect
A_CHECK = 200  # what the hazard checker notes at issue
A_ISSUED = 208  # clock of its issue; when its unit began, for how many cycles, with how much work (timed)
A_START = 216
A_BUSY = 224
A_WORK = 232
A_LANE_DST = 256  # i64 x 32, cp.async
A_LANE_SRC = 512
A_LANE_SIZE = 768  # (copy bytes | source bytes << 32) x 32
A_BYTES = 1024

OP_CP_ASYNC = 1
OP_MBAR_ARRIVE = 2  # cp.async.mbarrier.arrive
OP_TMA_LOAD = 3
OP_TMA_STORE = 4
OP_TMA_REDUCE = 5
OP_BULK_G2S = 6
OP_BULK_S2G = 7
OP_BULK_REDUCE = 8
OP_BULK_S2S = 9
OP_REMOTE = 11  # st.async, red.async
OP_WGMMA = 12
OP_TC_MMA = 13  # tcgen05.mma; the OP_TC_ of a CTA (or pair) take effect in order
OP_TC_COMMIT = 14
OP_TC_CP = 15
OP_TC_SHIFT = 16
OP_TC_ST = 17
OP_CLC = 18  # clusterlaunchcontrol.try_cancel

POLICY_EAGER, POLICY_LAZY, POLICY_RANDOM, POLICY_TIMED = 0, 1, 2, 3

#: accumulation in f32 steps; in f64, rounded once an instruction; as Hopper's tensor cores do
NUMERICS_F32, NUMERICS_F64, NUMERICS_EXACT = 0, 1, 2

# what a kernel call returns to the scheduler
RET_YIELD, RET_BLOCKED, RET_EXIT, RET_ERROR = 0, 1, 2, 3

# ---------------------------------------------------------------- error codes (L_ERROR)
ERR_OUT_OF_BOUNDS = 1
ERR_MISALIGNED = 2
ERR_UNSUPPORTED = 3
ERR_TRAP = 4
ERR_READ_ONLY = 5
ERR_MBAR_UNINIT = 6
ERR_MBAR_COUNT = 7
ERR_DEADLOCK = 8
ERR_TIMEOUT = 9
ERR_WRONG_SPACE = 10
ERR_BARRIER_ID = 11
ERR_BARRIER_COUNT = 12
ERR_TENSOR_MAP = 13
ERR_TMA_ALIGN = 14
ERR_ASSERT = 15
ERR_ASYNC_FULL = 16
ERR_COLLECTIVE_MASK = 17
ERR_MBAR_TX = 18
ERR_BULK_SIZE = 19
ERR_REMOTE = 21
ERR_MBAR_INIT = 40
ERR_MBAR_NO_COMPLETE = 41
ERR_CP_SIZE = 42
ERR_MULTICAST = 43
ERR_BARRIER_SPLIT = 22
ERR_CLUSTER_ARRIVE = 23
ERR_CLUSTER_WAIT = 24
ERR_BREAKPOINT = 25
ERR_STACK = 26
ERR_TMEM_NONE = 60
ERR_TMEM_COUNT = 61
ERR_TMEM_GROWS = 62
ERR_TMEM_PERMIT = 63
ERR_TMEM_DEALLOC = 64
ERR_TMEM_LEAK = 65
ERR_TMEM_UNIFORM = 66
ERR_TMEM_LANES = 67
ERR_TMEM_ROW = 68
ERR_TMEM_COLUMNS = 69
ERR_TMEM_PAIR = 70
ERR_TMEM_PAIR_COUNT = 71
ERR_TMEM_SOURCE = 72
ERR_TMEM_DESCRIPTOR = 73
ERR_WGMMA_LANES = 50
ERR_WGMMA_WARPS = 51
ERR_WGMMA_DIFFER = 52
ERR_WGMMA_DESC = 53
ERR_WGMMA_BOUNDS = 54
# 50 to 59 wgmma, 60 to 89 tcgen05, 90 to 99 launches (clusterlaunchcontrol, clusters)
ERR_CLC_SPACE = 90
ERR_CLC_AFTER = 91
ERR_REMOTE_EXITED = 92
ERR_MBAR_REMOTE = 93
ERR_OWN = 94
ERR_SETMAXNREG = 96
ERR_MMA_IDESC = 80  # tcgen05.mma: mma_rules.py has the words
ERR_MMA_DESC = 81
ERR_MMA_TILE = 82
ERR_MMA_COLUMNS = 83
ERR_MMA_LANE = 84
ERR_MMA_LANES_DIFFER = 85
ERR_MMA_SCALES = 86

#: state spaces of an access, as generated code passes them
SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_GENERIC = 0, 1, 2, 3
#: .shared::cta, which .shared means: the CTA's own part of the shared space (its low bits say SPACE_SHARED)
SPACE_OWN = SPACE_SHARED | 4
