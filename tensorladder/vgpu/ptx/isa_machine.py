"""PTX ISA sections 9.7.10 to 9.7.21: data movement, control flow, synchronisation, matrices. Read by `isa`.

A line is `name; PTX version that brought it; lowest target; modifiers in order`. In the modifiers `a|b` is one of,
`?` may be left out, `$x` is a set named in `isa.SETS`. Lines of one name are alternative forms; a line without a
semicolon goes on with the one before. Compilers also emit atomics with the operation before ordering and scope
(`atom.add.acquire.cta.u32`), which ptxas takes: listed too.
"""

_MOVE = """
    mov; 1.0; sm_10; pred|$any|b128
    shfl; 3.0; sm_30; up|down|bfly|idx b32
    shfl.sync; 6.0; sm_30; up|down|bfly|idx b32
    prmt; 2.0; sm_20; b32 f4e|b4e|rc8|ecl|ecr|rc16?
    ld; 1.0; sm_10; weak? const|global|local|param|param::entry|param::func|$smem? ca|cg|cs|lu|cv? $l1? L2::cache_hint?
        $pre? v2|v4? $mem|b128
    ld; 1.0; sm_10; volatile const|global|local|param|$smem? $pre? v2|v4? $mem|b128
    ld; 6.0; sm_70; relaxed|acquire $scope global|$smem? $l1? L2::cache_hint? $pre? v2|v4? $mem|b128
    ld; 8.2; sm_70; mmio relaxed|acquire sys global? $mem
    ld; 8.8; sm_100; weak|volatile|relaxed|acquire? $scope? global? ca|cg|cs|lu|cv? nc? $l1? $l2? L2::cache_hint? $pre?
        v4|v8 b32|u32|s32|f32|b64|u64|s64|f64
    ld.global; 3.1; sm_32; ca|cg|cs? nc $l1? L2::cache_hint? $pre? v2|v4? $mem|b128
    ld.global; 8.8; sm_100; nc $l1? $l2? L2::cache_hint? $pre? v4|v8 b32|u32|s32|f32|b64|u64|s64|f64
    ld; 9.4; sm_90; global? $mem proxy::readonly
    ldu; 2.0; sm_20; global? v2|v4? $mem|b128
    st; 1.0; sm_10; weak? global|local|param|param::func|$smem? wb|cg|cs|wt? $l1? L2::cache_hint? v2|v4? $mem|b128
    st; 1.1; sm_10; volatile global|local|param|$smem? v2|v4? $mem|b128
    st; 6.0; sm_70; relaxed|release $scope global|$smem? $l1? L2::cache_hint? v2|v4? $mem|b128
    st; 8.2; sm_70; mmio relaxed|release sys global? $mem
    st; 8.8; sm_100; weak|volatile|relaxed|release? $scope? global? wb|cg|cs|wt? $l1? $l2? L2::cache_hint? v4|v8
        b32|u32|s32|f32|b64|u64|s64|f64
    st.async; 8.1; sm_90; weak? shared::cluster? $tx v2|v4? b32|b64|b128|u32|u64|s32|s64|f32|f64
    st.async; 8.7; sm_100; mmio? release $scope global? v2|v4? $mem
    st.bulk; 8.6; sm_100; weak? shared::cta?
    multimem.ld_reduce; 8.1; sm_90; weak|relaxed|acquire? $scope? global? min|max|add|and|or|xor acc::f32|acc::f16?
        v2|v4|v8? b32|b64|u32|u64|s32|s64|$half|f32|f64|e5m2|e5m2x2|e5m2x4|e4m3|e4m3x2|e4m3x4
    multimem.st; 8.1; sm_90; weak|relaxed|release? $scope? global? v2|v4|v8?
        b32|b64|u32|u64|s32|s64|$half|f32|f64|e5m2|e5m2x2|e5m2x4|e4m3|e4m3x2|e4m3x4
    multimem.red; 8.1; sm_90; relaxed|release? $scope? global? min|max|add|and|or|xor v2|v4|v8?
        b32|b64|u32|u64|s32|s64|$half|f32|f64
    multimem.st.async; 9.3; sm_100; release $scope global? $mem
    multimem.red.async; 9.3; sm_100; release $scope global? add u32|s32|u64|s64
    multimem.cp.async.bulk; 9.1; sm_90; weak|relaxed? $scope? global shared::cta bulk_group cp_mask? b128?
    multimem.cp.reduce.async.bulk; 9.1; sm_90; relaxed? $scope? global shared::cta bulk_group $red noftz?
        f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64
    prefetch; 2.0; sm_20; global|local? L1|L2
    prefetch; 7.4; sm_80; global L2::evict_last|L2::evict_normal
    prefetch; 8.0; sm_90; const|param? tensormap
    prefetch; 9.4; sm_90; global? L1::32B valid_addr
    prefetchu; 2.0; sm_20; L1
    applypriority; 7.4; sm_80; global? L2::evict_normal
    applypriority.async.bulk; 9.4; sm_107f; global? bulk_group L2::evict_normal
    applypriority.async.bulk.tensor; 9.4; sm_107f; $dim global? bulk_group $load? L2::evict_normal $override? $override?
    discard; 7.4; sm_80; global? L2
    createpolicy; 7.4; sm_80; range|fractional global?
        L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged L2::evict_first|L2::evict_unchanged? b64
    createpolicy; 7.4; sm_80; cvt L2 b64
    isspacep; 2.0; sm_20; const|global|local|param|param::entry|$smem
    cvta; 2.0; sm_20; to? const|global|local|param|param::entry|$smem u32|u64
    cvt; 1.0; sm_10; rni|rzi|rmi|rpi|rn|rz|rm|rp|rna? relu|satfinite? ftz? sat? $cvt $cvt
    cvt; 7.0; sm_80; rn|rz relu? satfinite? pzo? f16x2|bf16x2|f16|bf16 f32
    cvt; 7.0; sm_80; rna|rn|rz satfinite? relu? pzo? tf32 f32
    cvt; 8.7; sm_100a; rs relu? satfinite? f16x2|bf16x2|e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4 f32
    cvt; 7.8; sm_89; rn|rz|rp satfinite? relu? pzo? scaled::n[12]::ue8m0?
        e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2|ue8m0x2|ue5m3x2|s2f6x2 f32|f16x2|bf16x2
    cvt; 7.8; sm_89; rn relu? satfinite? relu? scaled::n[12]::ue8m0? f16x2|bf16x2
        e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2|ue8m0x2|ue5m3x2|s2f6x2
    cvt.pack; 6.5; sm_72; sat u16|s16 s32
    cvt.pack; 6.5; sm_72; sat u2|s2|u4|s4|u8|s8 s32 b32
    mapa; 7.8; sm_90; shared::cluster? u32|u64
    getctarank; 7.8; sm_90; shared::cluster? u32|u64
    cp.async; 7.0; sm_80; ca|cg shared|shared::cta global L2::cache_hint? $pre?
    cp.async.commit_group; 7.0; sm_80;
    cp.async.wait_group; 7.0; sm_80;
    cp.async.wait_all; 7.0; sm_80;
    cp.async.bulk; 8.0; sm_90; weak|relaxed? $scope? shared::cluster|shared::cta global $tx $report? $mc?
        L2::cache_hint? ignore_oob? b128?
    cp.async.bulk; 8.0; sm_90; weak|relaxed? $scope? shared::cluster shared::cta $tx b128?
    cp.async.bulk; 8.0; sm_90; weak|relaxed? $scope? global shared::cta bulk_group L2::cache_hint? cp_mask? b128?
    cp.reduce.async.bulk; 8.0; sm_90; relaxed? $scope? shared::cluster shared::cta $tx $red b32|u32|s32|u64|s64
    cp.reduce.async.bulk; 8.0; sm_90; relaxed? $scope? global shared::cta bulk_group L2::cache_hint? $red noftz?
        f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64
    cp.async.bulk.prefetch.L2; 8.0; sm_90; global L2::cache_hint|L2::evict_last?
    cp.async.bulk.tensor; 8.0; sm_90; $dim shared::cluster|shared::cta global $load? $tx $report? $mc? $pair?
        L2::cache_hint? $override? $override?
    cp.async.bulk.tensor; 8.0; sm_90; $dim shared::cluster|shared::cta global $load? $tx $mc? L2::cache_hint $pair
    cp.async.bulk.tensor; 8.0; sm_90; $dim global shared::cta tile|tile::scatter4|im2col_no_offs|im2col_no_offs::w?
        bulk_group L2::cache_hint? $override? $override?
    cp.reduce.async.bulk.tensor; 8.0; sm_90; $dim global shared::cta $red tile|im2col_no_offs|im2col_no_offs::w?
        bulk_group L2::cache_hint? $override? $override?
    cp.async.bulk.prefetch.tensor; 8.0; sm_90; $dim L2 global $load? L2::cache_hint|L2::evict_last? $override?
        $override?
    cp.async.bulk.commit_group; 8.0; sm_90;
    cp.async.bulk.wait_group; 8.0; sm_90; read|sync_restrict::proxy::async?
    tensormap.replace; 8.3; sm_90a; tile $map_field global|shared::cta? b1024 b32|b64
    tensormap.query.alloc_class_large; 9.5; sm_90a; global|shared::cta? pred? b1024?
"""

_SYNC = """
    bar; 1.0; sm_10; cta? sync|arrive
    bar; 2.0; sm_20; cta? red popc u32
    bar; 2.0; sm_20; cta? red and|or pred
    barrier; 6.0; sm_30; cta? sync|arrive aligned?
    barrier; 6.0; sm_30; cta? red popc aligned? u32
    barrier; 6.0; sm_30; cta? red and|or aligned? pred
    bar.warp.sync; 6.0; sm_30;
    barrier.cluster.arrive; 7.8; sm_90; release|relaxed? aligned?
    barrier.cluster.wait; 7.8; sm_90; acquire? aligned?
    membar; 1.4; sm_10; cta|gl|sys
    membar.proxy; 7.5; sm_70; alias
    fence; 6.0; sm_70; sc|acq_rel|acquire|release? $scope
    fence; 8.6; sm_90; acquire|release sync_restrict::shared::cta|sync_restrict::shared::cluster cluster
    fence.mbarrier_init; 8.0; sm_90; release cluster
    fence.proxy; 7.5; sm_70; alias
    fence.proxy; 8.0; sm_90; async
    fence.proxy; 8.0; sm_90; async global|shared::cta|shared::cluster
    fence.proxy; 8.3; sm_90; tensormap::generic acquire|release $scope
    fence.proxy; 8.6; sm_90; async::generic acquire|release sync_restrict::shared::cta|sync_restrict::shared::cluster
        cluster
    fence.proxy; 9.3; sm_103a; generic::fabric|fabric::generic|fabric::fabric alias? acquire|release sys
    fence.alias; 9.5; sm_90; sync_restrict::read release sys
    atom; 1.1; sm_11; relaxed|acquire|release|acq_rel? $scope? global|$smem? $bool|exch|$red L2::cache_hint?
        b32|b64|b128|u32|u64|s32|s64|f32|f64
    atom; 1.1; sm_11; relaxed|acquire|release|acq_rel? $scope? global|$smem? cas L2::cache_hint? b16|b32|b64|b128
    atom; 1.1; sm_11; global|$smem? $scope? $bool|exch|cas|$red b16|b32|b64|u32|u64|s32|s64|f32|f64
    atom; 6.0; sm_70; global|$smem? $bool|exch|cas|$red relaxed|acquire|release|acq_rel $scope
        b16|b32|b64|b128|u32|u64|s32|s64|f32|f64
    atom; 6.0; sm_70; global|$smem relaxed|acquire|release|acq_rel|$scope relaxed|acquire|release|acq_rel|$scope
        $bool|exch|cas|$red noftz? b16|b32|b64|b128|u32|u64|s32|s64|f32|f64|$half
    atom; 6.2; sm_70; relaxed|acquire|release|acq_rel? $scope? global|$smem? add noftz L2::cache_hint? $half|f32
    atom; 8.1; sm_90; relaxed|acquire|release|acq_rel? $scope? global? add|min|max noftz? L2::cache_hint? v2|v4|v8
        $half|f32
    red; 1.2; sm_11; relaxed|release? $scope? global|$smem? $red L2::cache_hint? b32|b64|u32|u64|s32|s64|f32|f64
    red; 1.2; sm_11; global|$smem? $scope? $red b32|b64|u32|u64|s32|s64|f32|f64
    red; 6.0; sm_70; global|$smem? $red relaxed|release $scope b32|b64|u32|u64|s32|s64|f32|f64
    red; 6.0; sm_70; global|$smem relaxed|release|$scope relaxed|release|$scope
        $red noftz? b32|b64|u32|u64|s32|s64|f32|f64|$half
    red; 6.2; sm_70; relaxed|release? $scope? global|$smem? add noftz L2::cache_hint? $half|f32
    red; 8.1; sm_90; relaxed|release? $scope? global? add|min|max noftz? L2::cache_hint? v2|v4|v8 $half|f32
    red.async; 8.1; sm_90; relaxed cluster shared::cluster? $tx $red u32|s32|u64|b32
    red.async; 8.7; sm_100; mmio? release $scope global? add u32|s32|u64|s64
    vote; 1.2; sm_12; all|any|uni pred
    vote; 2.0; sm_20; ballot b32
    vote.sync; 6.0; sm_30; all|any|uni pred
    vote.sync; 6.0; sm_30; ballot b32
    vote.ballot.sync; 6.0; sm_30; b32
    match.any.sync; 6.0; sm_70; b32|b64
    match.all.sync; 6.0; sm_70; b32|b64
    activemask; 6.2; sm_30; b32
    redux.sync; 7.0; sm_80; add|min|max u32|s32
    redux.sync; 7.0; sm_80; and|or|xor b32
    redux.sync; 8.6; sm_100a; min|max abs? NaN? f32
    griddepcontrol; 7.8; sm_90; launch_dependents|wait
    elect.sync; 8.0; sm_90;
    mbarrier.init; 7.0; sm_80; layout::v0|layout::v1? shared|shared::cta? b64
    mbarrier.inval; 7.0; sm_80; shared|shared::cta? b64
    mbarrier.expect_tx; 8.0; sm_90; relaxed? $scope? $smem? $mc? b64
    mbarrier.complete_tx; 8.0; sm_90; relaxed? $scope? $smem? $mc? b64
    mbarrier.arrive; 7.0; sm_80; release|relaxed? $scope? $smem? $mc? b64
    mbarrier.arrive; 8.0; sm_90; expect_tx release|relaxed? $scope? $smem? $mc? b64
    mbarrier.arrive; 7.0; sm_80; noComplete release? cta? shared|shared::cta? b64
    mbarrier.arrive_drop; 7.0; sm_80; release|relaxed? $scope? $smem? $mc? b64
    mbarrier.arrive_drop; 8.0; sm_90; expect_tx release|relaxed? $scope? $smem? $mc? b64
    mbarrier.arrive_drop; 7.0; sm_80; noComplete release? cta? shared|shared::cta? b64
    mbarrier.test_wait; 7.0; sm_80; parity? phase_type::primary|phase_type::conditional? acquire|relaxed? $scope?
        shared|shared::cta? b64
    mbarrier.try_wait; 7.8; sm_90; parity? phase_type::primary|phase_type::conditional? acquire|relaxed? $scope?
        shared|shared::cta? b64
    mbarrier.pending_count; 7.0; sm_80; layout::v0? b64
    mbarrier.check_layout; 9.4; sm_90; layout::v0|layout::v1 shared::cta? b64
    cp.async.mbarrier.arrive; 7.0; sm_80; noinc? shared|shared::cta? b64
    tensormap.cp_fenceproxy; 8.3; sm_90; global shared::cta tensormap::generic release $scope sync aligned
    clusterlaunchcontrol.try_cancel.async; 8.6; sm_100; shared::cta? $tx multicast::cluster::all? b128
    clusterlaunchcontrol.query_cancel.is_canceled; 8.6; sm_100; pred b128
    clusterlaunchcontrol.query_cancel.get_first_ctaid; 8.6; sm_100; v4? b32 b128
    clusterlaunchcontrol.query_cancel; 8.6; sm_100; get_first_ctaid::[xyz] b32 b128
"""

_TCGEN05 = """
    tcgen05.alloc; 8.6; sm_100a; exclusive? $pair sync aligned shared::cta? b32
    tcgen05.dealloc; 8.6; sm_100a; exclusive? $pair sync aligned b32
    tcgen05.relinquish_alloc_permit; 8.6; sm_100a; $pair sync aligned
    tcgen05.ld; 8.6; sm_100a; sync aligned 16x64b|16x128b|16x256b|32x32b|16x32bx2 x1|x2|x4|x8|x16|x32|x64|x128
        pack::16b? b32
    tcgen05.ld; 8.8; sm_103a; red sync aligned 32x32b|16x32bx2 x1|x2|x4|x8|x16|x32|x64|x128 min|max abs? NaN?
        u32|s32|f32
    tcgen05.ld; 9.4; sm_107a; red? spcompress sync aligned 32x32b x4|x8|x16|x32|x64|x128 min|max sp::2:4 abs? NaN? f32
        b2
    tcgen05.st; 8.6; sm_100a; sync aligned 16x64b|16x128b|16x256b|32x32b|16x32bx2 x1|x2|x4|x8|x16|x32|x64|x128
        unpack::16b? b32
    tcgen05.wait; 8.6; sm_100a; sync aligned
    tcgen05.wait::ld; 8.6; sm_100a; sync aligned
    tcgen05.wait::st; 8.6; sm_100a; sync aligned
    tcgen05.cp; 8.6; sm_100a; $pair 128x256b|4x256b|128x128b|64x128b|32x128b warpx2::02_13|warpx2::01_23|warpx4? b8x16?
        b6x16_p32|b4x16_p64?
    tcgen05.shift; 8.6; sm_100a; $pair down
    tcgen05.mma; 8.6; sm_100a; sp? $pair kind::f16|kind::tf32|kind::f8f6f4|kind::i8|kind::ti16 ashift?
        decompress::lut::b? $coll? ashift? $coll?
    tcgen05.mma; 8.6; sm_100a; sp? $pair kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4 block_scale decompress::lut::b?
        scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32? $coll? $coll?
    tcgen05.mma.ws; 8.6; sm_100a; sp? cta_group::1 kind::f16|kind::tf32|kind::f8f6f4|kind::i8|kind::ti16 $coll?
    tcgen05.fence::before_thread_sync; 8.6; sm_100a;
    tcgen05.fence::after_thread_sync; 8.6; sm_100a;
    tcgen05.commit; 8.6; sm_100a; $pair mbarrier::arrive::one sync_restrict::shared::read::mma::a? shared::cluster? $mc?
        b64
"""

TABLES: dict[str, tuple[str, str]] = {
    "9.7.10": ("Data Movement and Conversion Instructions", _MOVE),
    "9.7.11": (
        "Fabric Instructions",
        """
        fabric.try_get; 9.3; sm_103a; .*
        fabric.try_put; 9.3; sm_103a; .*
        fabric.try_red; 9.3; sm_103a; .*
        fabric.try_pullred; 9.3; sm_103a; .*
        fabric.submit; 9.3; sm_103a; op_restrict::fetching|commit_group?
        fabric.wait; 9.3; sm_103a; sync_restrict::reads?
        """,
    ),
    "9.7.12": (
        "Texture Instructions",
        """
        tex; 1.0; sm_10; base|level|grad? $geom v4|v2? s32|u32|f16x2|f32 s32|f32
        tld4; 3.0; sm_20; r|g|b|a 2d|a2d|cube|acube v4 s32|u32|f32 f32
        txq; 1.5; sm_10; level? $texture_query b32
        istypep; 4.0; sm_30; texref|samplerref|surfref
        """,
    ),
    "9.7.13": (
        "Surface Instructions",
        """
        suld.b; 2.0; sm_20; 1d|2d|3d|a1d|a2d ca|cg|cs|cv? v2|v4? b8|b16|b32|b64 trap|clamp|zero
        sust.b; 2.0; sm_20; 1d|2d|3d|a1d|a2d wb|cg|cs|wt? v2|v4? b8|b16|b32|b64 trap|clamp|zero
        sust.p; 2.0; sm_20; 1d|2d|3d wb|cg|cs|wt? v2|v4? u32|s32|b32|f32 trap|clamp|zero
        sured.b; 3.0; sm_20; add|min|max|and|or 1d|2d|3d u32|u64|s32|b32|s64|b64 trap|clamp|zero
        sured.p; 3.0; sm_20; add|min|max|and|or 1d|2d|3d b32|b64 trap|clamp|zero
        suq; 1.5; sm_20; width|height|depth|channel_data_type|channel_order|array_size|memory_layout b32
        """,
    ),
    "9.7.14": (
        "Control Flow Instructions",
        """
        bra; 1.0; sm_10; uni?
        brx.idx; 6.0; sm_30; uni?
        call; 1.0; sm_10; uni?
        ret; 1.0; sm_10; uni?
        exit; 1.0; sm_10;
        """,
    ),
    "9.7.15": ("Parallel Synchronization and Communication Instructions", _SYNC),
    "9.7.16": (
        "Warp-Level Matrix Multiply-Accumulate Instructions",
        """
        wmma.load; 6.0; sm_70; a|b|c sync aligned row|col $mma_shape global|shared|shared::cta? $elem
        wmma.store.d; 6.0; sm_70; sync aligned row|col $mma_shape global|shared|shared::cta? $elem
        wmma.mma; 6.0; sm_70; sync aligned row|col row|col $mma_shape f16|f32 f16|f32 satfinite?
        wmma.mma; 6.3; sm_72; sync aligned row|col row|col $mma_shape rn? $elem $elem $elem $elem satfinite|$rnd?
        wmma.mma; 6.3; sm_75; xor|and popc sync aligned row|col row|col $mma_shape s32 b1 b1 s32
        mma.sync.aligned; 6.4; sm_70; $mma_shape row|col row|col satfinite? $elem $elem $elem $elem $rnd?
        mma.sync.aligned; 7.0; sm_75; $mma_shape row col s32 b1 b1 s32 xor|and popc
        mma.sync.aligned; 8.7; sm_120a; $mma_shape row col kind::f8f6f4 $elem $elem $elem $elem
        mma.sync.aligned; 8.7; sm_120a; $mma_shape row col kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4 block_scale
            scale_vec::1X|scale_vec::2X|scale_vec::4X? $elem $elem $elem $elem ue8m0|ue4m3
        mma.sync.aligned; 8.7; sm_120a; kind::f8f6f4 $mma_shape row col $elem $elem $elem $elem
        mma.sync.aligned; 8.7; sm_120a; kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4 block_scale
            scale_vec::1X|scale_vec::2X|scale_vec::4X? $mma_shape row col $elem $elem $elem $elem ue8m0|ue4m3
        mma; 7.1; sm_80; sp|sp::ordered_metadata sync aligned $mma_shape row col satfinite? $elem $elem $elem $elem
        mma; 8.7; sm_120a; sp|sp::ordered_metadata sync aligned $mma_shape row col kind::f8f6f4 $elem $elem $elem $elem
        mma; 8.7; sm_120a; sp::ordered_metadata sync aligned $mma_shape row col kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4
            block_scale scale_vec::1X|scale_vec::2X|scale_vec::4X? $elem $elem $elem $elem ue8m0|ue4m3
        ldmatrix; 6.5; sm_75; sync aligned m8n8 x1|x2|x4 trans? shared|shared::cta? b16
        ldmatrix; 8.6; sm_100a; sync aligned m16n16 x1|x2 trans shared|shared::cta? b8
        ldmatrix; 8.6; sm_100a; sync aligned m8n16|m16n16 x1|x2|x4 trans? shared|shared::cta? b8x16 b6x16_p32|b4x16_p64
        ldmatrix; 9.4; sm_107a; sync aligned m8n16 x1|x2|x4 shared|shared::cta? s8 s4
        stmatrix; 7.8; sm_90; sync aligned m8n8 x1|x2|x4 trans? shared|shared::cta? b16
        stmatrix; 8.6; sm_100a; sync aligned m16n8 x1|x2|x4 trans shared|shared::cta? b8
        movmatrix; 7.8; sm_75; sync aligned m8n8 trans b16
        """,
    ),
    "9.7.17": (
        "Asynchronous Warpgroup-Level Matrix Multiply-Accumulate Instructions",
        """
        wgmma.mma_async; 8.0; sm_90a; sp? sync aligned $mma_shape satfinite? f16|f32|s32 $elem $elem
        wgmma.mma_async; 8.0; sm_90a; sync aligned $mma_shape s32 b1 b1 and popc
        wgmma.fence; 8.0; sm_90a; sync aligned
        wgmma.commit_group; 8.0; sm_90a; sync aligned
        wgmma.wait_group; 8.0; sm_90a; sync aligned
        """,
    ),
    "9.7.18": ("TensorCore 5th Generation Family Instructions", _TCGEN05),
    "9.7.19": (
        "Stack Manipulation Instructions",
        """
        stacksave; 7.3; sm_52; u32|u64
        stackrestore; 7.3; sm_52; u32|u64
        alloca; 7.3; sm_52; u32|u64
        """,
    ),
    "9.7.20": (
        "Video Instructions",
        """
        vadd; 2.0; sm_20; $video $video $video sat? add|min|max?
        vsub; 2.0; sm_20; $video $video $video sat? add|min|max?
        vabsdiff; 2.0; sm_20; $video $video $video sat? add|min|max?
        vmin; 2.0; sm_20; $video $video $video sat? add|min|max?
        vmax; 2.0; sm_20; $video $video $video sat? add|min|max?
        vshl; 2.0; sm_20; $video $video u32 sat? clamp|wrap add|min|max?
        vshr; 2.0; sm_20; $video $video u32 sat? clamp|wrap add|min|max?
        vmad; 2.0; sm_20; $video $video $video po? sat? shr7|shr15?
        vset; 2.0; sm_20; $video $video eq|ne|lt|le|gt|ge add|min|max?
        vadd2; 3.0; sm_30; $video $video $video sat? add?
        vsub2; 3.0; sm_30; $video $video $video sat? add?
        vavrg2; 3.0; sm_30; $video $video $video sat? add?
        vabsdiff2; 3.0; sm_30; $video $video $video sat? add?
        vmin2; 3.0; sm_30; $video $video $video sat? add?
        vmax2; 3.0; sm_30; $video $video $video sat? add?
        vset2; 3.0; sm_30; $video $video eq|ne|lt|le|gt|ge add?
        vadd4; 3.0; sm_30; $video $video $video sat? add?
        vsub4; 3.0; sm_30; $video $video $video sat? add?
        vavrg4; 3.0; sm_30; $video $video $video sat? add?
        vabsdiff4; 3.0; sm_30; $video $video $video sat? add?
        vmin4; 3.0; sm_30; $video $video $video sat? add?
        vmax4; 3.0; sm_30; $video $video $video sat? add?
        vset4; 3.0; sm_30; $video $video eq|ne|lt|le|gt|ge add?
        """,
    ),
    "9.7.21": (
        "Miscellaneous Instructions",
        """
        brkpt; 1.0; sm_11;
        nanosleep; 6.3; sm_70; u32
        pmevent; 1.4; sm_10; mask?
        trap; 1.0; sm_10;
        setmaxnreg; 8.0; sm_90a; inc|dec sync aligned u32
        """,
    ),
}
