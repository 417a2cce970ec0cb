// A rung behind TVM-FFI: module.gemm(A, B, C) of any DLPack arrays. ELEMENT_CODE and ELEMENT_BITS: their type, as DLPack
// has it (dlpack.h, DLDataType).
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <climits>

#include "launch.h"

namespace {

using tvm::ffi::TensorView;

void check(const TensorView& x, const char* name, const TensorView& a) {
    const DLDataType type = x.dtype();
    if (x.ndim() != 2 || !x.IsContiguous()) TVM_FFI_THROW(ValueError) << name << " must be a row-major matrix: copy it";
    if (type.code != ELEMENT_CODE || type.bits != ELEMENT_BITS || type.lanes != 1)
        TVM_FFI_THROW(ValueError) << name << " is " << tvm::ffi::DLDataTypeToString(type) << ", built for "
                                  << tvm::ffi::DLDataTypeToString({ELEMENT_CODE, ELEMENT_BITS, 1});
    if (x.device().device_type != kDLCUDA || x.device().device_id != a.device().device_id)
        TVM_FFI_THROW(ValueError) << name << " is elsewhere: all must be on one GPU";
    if (x.size(0) > INT_MAX || x.size(1) > INT_MAX)
        TVM_FFI_THROW(ValueError) << name << " has an extent of more than 31 bits";
}

void gemm(TensorView a, TensorView b, TensorView c) {
    check(a, "A", a);
    check(b, "B", a);
    check(c, "C", a);
    const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
    if (b.size(1) != k) TVM_FFI_THROW(ValueError) << "B has K=" << b.size(1) << ", A has K=" << k;
    if (c.size(0) != m || c.size(1) != n) TVM_FFI_THROW(ValueError) << "C must be (" << m << ", " << n << ")";
    // The caller's framework has said which stream it is on.
    const int device = a.device().device_id;
    void* stream = TVMFFIEnvGetStream(kDLCUDA, device);
    const char* wrong = launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), m, n, k, device, stream);
    if (wrong != nullptr) TVM_FFI_THROW(ValueError) << wrong;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gemm, gemm);
