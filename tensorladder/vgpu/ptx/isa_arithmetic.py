"""PTX ISA sections 9.7.1 to 9.7.9: arithmetic, comparison, selection and logic. Read by `isa`.

A line is `name; PTX version that brought it; lowest target; modifiers in order`. In the modifiers `a|b` is one of,
`?` may be left out, `$x` is a set named in `isa.SETS`. Lines of one name are alternative forms.
"""

TABLES: dict[str, tuple[str, str]] = {
    "9.7.1": (
        "Integer Arithmetic Instructions",
        """
        add; 1.0; sm_10; sat? $int
        add; 8.0; sm_90; u16x2|s16x2
        add; 9.2; sm_120f; sat u32|u16x2|s16x2
        sub; 1.0; sm_10; sat? $int
        mul; 1.0; sm_10; hi|lo $int
        mul; 1.0; sm_10; wide u16|u32|s16|s32
        mad; 1.0; sm_10; hi|lo sat? $int
        mad; 1.0; sm_10; wide u16|u32|s16|s32
        clmad; 9.3; sm_80; hi|lo u64
        mul24; 1.0; sm_10; hi|lo u32|s32
        mad24; 1.0; sm_10; hi|lo sat? u32|s32
        sad; 1.0; sm_10; $int
        div; 1.0; sm_10; $int
        rem; 1.0; sm_10; $int
        abs; 1.0; sm_10; s16|s32|s64
        neg; 1.0; sm_10; s16|s32|s64
        min; 1.0; sm_10; $int
        min; 8.0; sm_90; relu? s32|u16x2|s16x2
        max; 1.0; sm_10; $int
        max; 8.0; sm_90; relu? s32|u16x2|s16x2
        popc; 2.0; sm_20; b32|b64
        clz; 2.0; sm_20; b32|b64
        bfind; 2.0; sm_20; shiftamt? u32|u64|s32|s64
        fns; 6.0; sm_30; b32
        brev; 2.0; sm_20; b32|b64
        bfe; 2.0; sm_20; u32|u64|s32|s64
        bfi; 2.0; sm_20; b32|b64
        szext; 7.6; sm_70; clamp|wrap u32|s32
        bmsk; 7.6; sm_70; clamp|wrap b32
        dp4a; 5.0; sm_61; u32|s32 u32|s32
        dp2a; 5.0; sm_61; lo|hi u32|s32 u32|s32
        """,
    ),
    "9.7.2": (
        "Extended-Precision Integer Arithmetic Instructions",
        """
        add.cc; 1.2; sm_10; u32|s32|u64|s64
        addc; 1.2; sm_10; cc? u32|s32|u64|s64
        sub.cc; 1.2; sm_10; u32|s32|u64|s64
        subc; 1.2; sm_10; cc? u32|s32|u64|s64
        mad.hi.cc; 3.0; sm_20; u32|s32|u64|s64
        mad.lo.cc; 3.0; sm_20; u32|s32|u64|s64
        madc; 3.0; sm_20; hi|lo cc? u32|s32|u64|s64
        """,
    ),
    "9.7.3": (
        "Floating-Point Instructions",
        """
        testp; 2.0; sm_20; finite|infinite|number|notanumber|normal|subnormal f32|f64
        copysign; 2.0; sm_20; f32|f64
        add; 1.0; sm_10; $rnd? ftz? sat? f32
        add; 1.0; sm_13; $rnd? f64
        add; 8.6; sm_100; $rnd? ftz? f32x2
        sub; 1.0; sm_10; $rnd? ftz? sat? f32
        sub; 1.0; sm_13; $rnd? f64
        sub; 8.6; sm_100; $rnd? ftz? f32x2
        mul; 1.0; sm_10; $rnd? ftz? sat? f32
        mul; 1.0; sm_13; $rnd? f64
        mul; 8.6; sm_100; $rnd? ftz? f32x2
        fma; 2.0; sm_20; $rnd ftz? sat? f32
        fma; 1.4; sm_13; $rnd f64
        fma; 8.6; sm_100; $rnd ftz? f32x2
        mad; 1.0; sm_10; $rnd? ftz? sat? f32
        mad; 1.0; sm_13; $rnd? f64
        div; 1.0; sm_10; approx|full ftz? f32
        div; 1.4; sm_20; $rnd ftz? f32
        div; 1.4; sm_13; $rnd f64
        div; 1.0; sm_10; ftz? f32
        abs; 1.0; sm_10; ftz? f32
        abs; 1.0; sm_13; f64
        neg; 1.0; sm_10; ftz? f32
        neg; 1.0; sm_13; f64
        min; 1.0; sm_10; ftz? NaN? xorsign? abs? f32
        min; 1.0; sm_13; f64
        max; 1.0; sm_10; ftz? NaN? xorsign? abs? f32
        max; 1.0; sm_13; f64
        min3; 8.8; sm_100; ftz? NaN? abs? f32
        max3; 8.8; sm_100; ftz? NaN? abs? f32
        min; 8.8; sm_100; ftz? NaN? abs f32
        max; 8.8; sm_100; ftz? NaN? abs f32
        rcp; 1.0; sm_10; approx ftz? f32
        rcp; 2.0; sm_20; $rnd ftz? f32
        rcp; 1.4; sm_13; $rnd f64
        rcp; 1.0; sm_10; ftz? f32
        rcp; 2.1; sm_20; approx ftz f64
        sqrt; 1.0; sm_10; approx? ftz? f32
        sqrt; 2.0; sm_20; $rnd ftz? f32
        sqrt; 1.4; sm_13; $rnd f64
        rsqrt; 1.0; sm_10; approx? ftz? f32
        rsqrt; 1.4; sm_13; approx? ftz? f64
        sin; 1.0; sm_10; approx? ftz? 2pi? f32
        cos; 1.0; sm_10; approx? ftz? 2pi? f32
        lg2; 1.0; sm_10; approx? ftz? f32
        ex2; 1.0; sm_10; approx? ftz? f32
        tanh; 7.0; sm_75; approx f32
        """,
    ),
    "9.7.4": (
        "Half Precision Floating-Point Instructions",
        """
        add; 4.2; sm_53; rn? ftz? sat? f16|f16x2
        add; 7.8; sm_90; rn? bf16|bf16x2
        sub; 4.2; sm_53; rn? ftz? sat? f16|f16x2
        sub; 7.8; sm_90; rn? bf16|bf16x2
        mul; 4.2; sm_53; rn? ftz? sat? f16|f16x2
        mul; 7.8; sm_90; rn? bf16|bf16x2
        fma; 4.2; sm_53; rn ftz? sat? f16|f16x2
        fma; 7.0; sm_80; rn ftz? relu f16|f16x2
        fma; 7.0; sm_80; rn relu? bf16|bf16x2
        fma; 8.1; sm_90; rn oob relu? $half
        neg; 6.0; sm_53; ftz? $half
        abs; 6.5; sm_53; ftz? $half
        min; 7.0; sm_80; ftz? NaN? xorsign? abs? f16|f16x2
        min; 7.0; sm_80; NaN? xorsign? abs? bf16|bf16x2
        max; 7.0; sm_80; ftz? NaN? xorsign? abs? f16|f16x2
        max; 7.0; sm_80; NaN? xorsign? abs? bf16|bf16x2
        tanh; 7.0; sm_75; approx f16|f16x2
        tanh; 7.8; sm_90; approx bf16|bf16x2
        ex2; 7.0; sm_75; approx f16|f16x2
        ex2; 7.8; sm_90; approx ftz bf16|bf16x2
        """,
    ),
    "9.7.5": (
        "Mixed Precision Floating-Point Instructions",
        """
        add; 8.6; sm_100; $rnd? sat? f32 f16|bf16
        sub; 8.6; sm_100; $rnd? sat? f32 f16|bf16
        fma; 8.6; sm_100; $rnd sat? f32 f16|bf16
        add; 9.4; sm_107f; $rnd? f32x2 f16x2|bf16x2 f32x2
        add; 9.4; sm_107f; rz ftz? f16x2|bf16x2 f32x2 f32x2
        sub; 9.4; sm_107f; $rnd? f32x2 f16x2|bf16x2 f32x2
        sub; 9.4; sm_107f; rz ftz? f16x2|bf16x2 f32x2 f32x2
        fma; 9.4; sm_107f; $rnd f32x2 f16x2|bf16x2 f32x2 f32x2
        mul; 9.4; sm_107f; ftz? rz f16x2|bf16x2 f32x2 f32x2
        mul; 9.4; sm_107f; f16x2|bf16x2 f16x2|bf16x2 f16x2|bf16x2
        """,
    ),
    "9.7.6": (
        "Sparse Compression Instructions",
        """
        spcompress; 9.4; sm_107a; b8|b16 b2|b4 sp::2:4 x1|x2|x4|x8|x16|x32|x64
        spdecompress; 9.4; sm_107a; b8|b16 b2|b4 sp::(?:1|2|4):(?:2|4|8|16) x1|x2|x4|x8|x16|x32|x64
        """,
    ),
    "9.7.7": (
        "Comparison and Selection Instructions",
        """
        set; 1.0; sm_10; $cmp $bool? ftz? u32|s32|f32 $any
        set; 9.4; sm_107f; $cmpi u8x4|s8x4|u16x2|s16x2
        setp; 1.0; sm_10; $cmp $bool? ftz? $any
        selp; 1.0; sm_10; $any
        slct; 1.0; sm_10; ftz? $any s32|f32
        """,
    ),
    "9.7.8": (
        "Half Precision Comparison Instructions",
        """
        set; 4.2; sm_53; $cmpf $bool? ftz? $half|u16|s16|u32|s32 $half|$any
        setp; 4.2; sm_53; $cmpf $bool? ftz? $half
        """,
    ),
    "9.7.9": (
        "Logic and Shift Instructions",
        """
        and; 1.0; sm_10; pred|$bits
        or; 1.0; sm_10; pred|$bits
        xor; 1.0; sm_10; pred|$bits
        not; 1.0; sm_10; pred|$bits
        cnot; 1.0; sm_10; $bits
        lop3; 4.3; sm_50; b32
        lop3; 8.2; sm_70; or|and b32
        shf; 3.1; sm_32; l|r clamp|wrap b32
        shl; 1.0; sm_10; $bits
        shr; 1.0; sm_10; $bits|$int
        """,
    ),
}
