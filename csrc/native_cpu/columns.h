// B as column panels: prepared once, or made on demand for a call.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "scratch.h"

namespace mxgemm {

inline int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// B in the form that every kernel starts from, whatever the number of rows of A: column panels,
// effective scale bytes, and what the driver must know of them.
struct PreparedColumns {
  int64_t columns = 0, blocks = 0;
  Buffer codes, scales;
  std::vector<ScaleRange> ranges;  // of each panel
  std::vector<uint8_t> poisoned;   // per column: a block is NaN

  int64_t panels() const { return divide_up(columns, kPanel); }
  ColumnPanel panel(int64_t p) const {
    return {codes.as<uint8_t>() + p * blocks * kPanelBlockBytes,
            scales.as<uint8_t>() + p * blocks * kPanel};
  }
  int64_t nbytes() const { return panels() * (blocks * (kPanelBlockBytes + kPanel) + 24); }
};

std::unique_ptr<PreparedColumns> prepare_columns(const Kernels& kernels, const Matrix& b, int64_t n,
                                                 int64_t blocks, int threads);

// Some column panels, ready to read.
struct Columns {
  std::vector<ColumnPanel> panels;
  std::vector<ScaleRange> ranges;
  std::vector<uint8_t> poisoned;  // per column
};

// B of one call: prepared, or canonical, whose panels are made in a thread's scratch memory.
class ColumnSource {
 public:
  ColumnSource(const Kernels& kernels, const PreparedColumns* prepared, const Matrix& b, int64_t n,
               int64_t blocks)
      : kernels_(kernels), prepared_(prepared), b_(b), n_(n), blocks_(blocks) {}

  // Panels first .. first + count - 1.
  void get(int64_t first, int count, Buffer* scratch, Columns* out) const;

 private:
  const Kernels& kernels_;
  const PreparedColumns* prepared_;  // or null and b_
  Matrix b_;
  int64_t n_, blocks_;
};

}  // namespace mxgemm
