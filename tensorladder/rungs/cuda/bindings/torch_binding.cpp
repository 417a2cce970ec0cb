// A rung as a PyTorch extension: module.gemm(A, B, C). TORCH_DTYPE: at::kHalf, at::kBFloat16 or at::kFloat.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <climits>

#include "launch.h"

#ifdef TORCH_WITH_CUDA  // a build of torch for the CPU alone has neither streams nor tensors of a GPU
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

void check(const at::Tensor& x, const char* name, const at::Tensor& a) {
    TORCH_CHECK_VALUE(x.dim() == 2 && x.is_contiguous(), name, " must be a row-major matrix: copy it");
    TORCH_CHECK_VALUE(x.scalar_type() == TORCH_DTYPE, name, " is ", x.scalar_type(), ", built for ", TORCH_DTYPE);
    TORCH_CHECK_VALUE(x.is_cuda() && x.device() == a.device(), name, " is on ", x.device(), ": all must be on one GPU");
    TORCH_CHECK_VALUE(x.size(0) <= INT_MAX && x.size(1) <= INT_MAX, name, " has an extent of more than 31 bits");
}

void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    check(a, "A", a);
    check(b, "B", a);
    check(c, "C", a);
    const auto m = a.size(0), n = b.size(0), k = a.size(1);
    TORCH_CHECK_VALUE(b.size(1) == k, "B has K=", b.size(1), ", A has K=", k);
    TORCH_CHECK_VALUE(c.size(0) == m && c.size(1) == n, "C must be (", m, ", ", n, ")");
#ifdef TORCH_WITH_CUDA
    const auto stream = c10::cuda::getCurrentCUDAStream(a.device().index()).stream();
    const char* wrong = launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), m, n, k, a.device().index(), stream);
    TORCH_CHECK_VALUE(wrong == nullptr, wrong);
#endif
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("gemm", &gemm, "C = A B^T, in C"); }
