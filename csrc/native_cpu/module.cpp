// The Python module mxgemm._native_cpu. Tensors come as addresses with strides: the Python side has
// checked their shapes, dtypes and devices, and a call on one row must not spend its time on
// conversions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "gemm.h"
#include "parallel.h"
#include "quantize.h"
#include "scratch.h"
#include "select.h"
#include "weight_only.h"

namespace nb = nanobind;

namespace mxgemm {
namespace {

template <class T>
T* pointer(nb::handle address) {
  return reinterpret_cast<T*>(nb::cast<uintptr_t>(address));
}

// (codes address, row stride in bytes, scales address, row stride in bytes)
Matrix matrix(const nb::tuple& t) {
  return {pointer<const uint8_t>(t[0]), pointer<const uint8_t>(t[2]), nb::cast<int64_t>(t[1]),
          nb::cast<int64_t>(t[3])};
}

// (address, row stride in elements, dtype) or None
Plane plane(nb::handle h) {
  if (h.is_none()) return {};
  const auto t = nb::cast<nb::tuple>(h);
  return {pointer<void>(t[0]), nb::cast<int64_t>(t[1]), static_cast<DType>(nb::cast<int>(t[2]))};
}

Epilogue make_epilogue(double alpha, double beta, int activation, int dact, nb::handle out,
                       nb::handle bias, nb::handle c, nb::handle aux_out, nb::handle aux_in) {
  Epilogue e;
  e.alpha = alpha;
  e.beta = beta;
  e.activation = static_cast<Activation>(activation);
  e.dact = static_cast<Activation>(dact);
  e.out = plane(out);
  e.bias = plane(bias);
  e.c = plane(c);
  e.aux_out = plane(aux_out);
  e.aux_in = plane(aux_in);
  return e;
}

// A prepared B, or a tuple like that of matrix().
void set_columns(nb::handle b, const PreparedColumns** prepared, Matrix* canonical) {
  if (nb::isinstance<PreparedColumns>(b)) {
    *prepared = nb::cast<const PreparedColumns*>(b);
  } else {
    *canonical = matrix(nb::cast<nb::tuple>(b));
  }
}

void call_gemm(const Kernels& kernels, int64_t m, int64_t n, int64_t blocks, const nb::tuple& a,
               nb::handle b, nb::handle out, double alpha, double beta, int activation, int dact,
               nb::handle bias, nb::handle c, nb::handle aux_out, nb::handle aux_in,
               uintptr_t bias_grad, int threads, int path) {
  GemmCall call{};
  call.m = m;
  call.n = n;
  call.blocks = blocks;
  call.a = matrix(a);
  set_columns(b, &call.prepared, &call.b);
  call.epilogue = make_epilogue(alpha, beta, activation, dact, out, bias, c, aux_out, aux_in);
  call.bias_grad = reinterpret_cast<float*>(bias_grad);
  call.threads = threads;
  call.path = static_cast<Path>(path);
  const nb::gil_scoped_release release;
  gemm(kernels, call);
}

void call_weight_only(const Kernels& kernels, int64_t m, int64_t n, int64_t k, int64_t blocks,
                      nb::handle x, nb::handle b, nb::handle out, double alpha, double beta,
                      int activation, int dact, nb::handle bias, nb::handle c, nb::handle aux_out,
                      nb::handle aux_in, uintptr_t bias_grad, int threads) {
  const Plane rows = plane(x);
  WeightOnlyCall call{};
  call.m = m;
  call.n = n;
  call.k = k;
  call.blocks = blocks;
  call.x = rows.data;
  call.x_stride = rows.stride;
  call.x_dtype = rows.dtype;
  set_columns(b, &call.prepared, &call.b);
  call.epilogue = make_epilogue(alpha, beta, activation, dact, out, bias, c, aux_out, aux_in);
  call.bias_grad = reinterpret_cast<float*>(bias_grad);
  call.threads = threads;
  const nb::gil_scoped_release release;
  weight_only_gemm(kernels, call);
}

// x: (address, row stride, column stride, dtype); options: (rounding bias or -1, stochastic, seed,
// rotation size, rotation signs, 2-D blocks, prescale)
QuantizeCall quantize_call(const nb::tuple& x, int64_t rows, int64_t k, int64_t stored_k,
                           const nb::tuple& options, uint32_t stream, uintptr_t codes,
                           uintptr_t scales) {
  QuantizeCall q{};
  q.x = pointer<const void>(x[0]);
  q.row_stride = nb::cast<int64_t>(x[1]);
  q.column_stride = nb::cast<int64_t>(x[2]);
  q.dtype = static_cast<DType>(nb::cast<int>(x[3]));
  q.rows = rows;
  q.k = k;
  q.stored_k = stored_k;
  q.rounding_bias = nb::cast<int32_t>(options[0]);
  q.stochastic = nb::cast<bool>(options[1]);
  q.seed = nb::cast<uint64_t>(options[2]);
  q.rotation_size = nb::cast<int>(options[3]);
  q.rotation_signs = nb::cast<uint64_t>(options[4]);
  q.block_2d = nb::cast<bool>(options[5]);
  q.prescale = nb::cast<float>(options[6]);
  q.stream = stream;
  q.codes = reinterpret_cast<uint8_t*>(codes);
  q.scales = reinterpret_cast<uint8_t*>(scales);
  return q;
}

}  // namespace
}  // namespace mxgemm

NB_MODULE(_native_cpu, m) {
  using namespace mxgemm;
  thread_provider();  // forks are noticed from here on
  m.doc() = "MXFP4 GEMM and quantization on the CPU; called by mxgemm's Python code only.";
  m.def("built_isas", &built_isas, "Instruction sets that this build has kernels for, best first.");
  m.def("available_isas", &available_isas,
        "Instruction sets that this processor and build have, best first.");
  m.def("thread_provider", &thread_provider,
        "The file of the OpenMP runtime whose threads are used, or std::thread.");

  nb::class_<Kernels>(m, "Kernels", "The functions of one instruction set.")
      .def_ro("isa", &Kernels::isa)
      .def_ro("tile_name", &Kernels::tile_name)
      .def_prop_ro("weight_only_name",
                   [](const Kernels& k) {
                     return k.weight_only_bf16.multiply ? k.weight_only_bf16.name
                                                        : k.weight_only.name;
                   })
      .def_ro("few_rows", &Kernels::few_rows)
      .def_ro("tile_rows", &Kernels::tile_rows)
      .def_prop_ro("tile_columns", [](const Kernels& k) { return k.tile_panels * kPanel; });
  m.def("kernels", &select_kernels, nb::rv_policy::reference, nb::arg("isa"),
        "The kernels of the named instruction set, or the best for an empty name.");

  m.def(
      "multiply_loop",
      [](const Kernels& kernels, int64_t iterations, int threads) {
        const nb::gil_scoped_release release;
        int64_t count = 0;
        parallel_for(threads, threads, [&](int64_t task, int) {
          const int64_t own = kernels.multiply_loop(iterations);
          if (task == 0) count = own * threads;
        });
        return count;
      },
      "Multiplies registers on every thread, for measurements; returns the number of "
      "multiply-adds.");
  m.def(
      "read_loop",
      [](const Kernels& kernels, uintptr_t address, int64_t bytes, bool asks_ahead, int threads) {
        const nb::gil_scoped_release release;
        const int64_t piece = bytes / threads;
        parallel_for(threads, threads, [&](int64_t task, int) {
          const uint64_t sum = kernels.read_loop(
              reinterpret_cast<const uint8_t*>(address) + task * piece, piece, asks_ahead);
          asm volatile("" : : "r"(sum));
        });
      },
      "Reads memory on every thread, for measurements.");

  nb::class_<PreparedColumns>(m, "PreparedColumns", "B in the form that every kernel starts from.")
      .def_ro("columns", &PreparedColumns::columns)
      .def_ro("blocks", &PreparedColumns::blocks)
      .def_prop_ro("nbytes", &PreparedColumns::nbytes);
  m.def(
      "prepare",
      [](const Kernels& kernels, const nb::tuple& b, int64_t n, int64_t blocks, int threads) {
        const Matrix source = matrix(b);
        const nb::gil_scoped_release release;
        return prepare_columns(kernels, source, n, blocks, threads);
      },
      "Prepares a canonical B [n, blocks * 32].");

  m.def("gemm", &call_gemm, "D = epilogue(A @ B.T); b is a PreparedColumns or a tuple like a.",
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  m.def("weight_only", &call_weight_only,
        "D = epilogue(x @ B.T) with x in FP32, BF16 or FP16; b as for gemm.", nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg());

  m.def(
      "empty",
      [](size_t rows, size_t columns) {
        auto buffer = std::make_unique<Buffer>(take_result(rows * columns));
        void* data = buffer->as<void>();
        const nb::capsule owner(buffer.release(), [](void* p) noexcept {
          const std::unique_ptr<Buffer> held(static_cast<Buffer*>(p));
          give_result_back(std::move(*held));
        });
        return nb::ndarray<nb::pytorch, uint8_t, nb::ndim<2>>(data, {rows, columns}, owner);
      },
      "A uint8 tensor [rows, columns] whose memory is kept for the next one; contents undefined.");
  m.def(
      "quantize",
      [](const Kernels& kernels, const nb::tuple& x, int64_t rows, int64_t k, int64_t stored_k,
         const nb::tuple& options, uint32_t stream, uintptr_t codes, uintptr_t scales,
         int threads) {
        const QuantizeCall call =
            quantize_call(x, rows, k, stored_k, options, stream, codes, scales);
        const nb::gil_scoped_release release;
        quantize(kernels, call, threads);
      },
      "Quantizes x [rows, k] along k.");
  m.def(
      "quantize_pair",
      [](const Kernels& kernels, const nb::tuple& x, int64_t rows, int64_t k, int64_t stored_k,
         int64_t stored_rows, const nb::tuple& options, uintptr_t codes, uintptr_t scales,
         uintptr_t codes_m, uintptr_t scales_m, int threads) {
        const QuantizeCall along_k = quantize_call(x, rows, k, stored_k, options, 0, codes, scales);
        QuantizeCall along_m =
            quantize_call(x, k, rows, stored_rows, options, 1, codes_m, scales_m);
        std::swap(along_m.row_stride, along_m.column_stride);
        const nb::gil_scoped_release release;
        quantize_pair(kernels, along_k, along_m, threads);
      },
      "Quantizes x [rows, k] along k and x.T along rows.");
}
