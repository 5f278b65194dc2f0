#include <cstdarg>
#include <cstdio>
#include <stdexcept>

#include "core/architecture.h"
#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator {

const Architecture& find_architecture(const std::string& name) {
  if (name == "gfx1250") return gfx1250::architecture();
  throw std::invalid_argument("no such architecture: " + name);
}

std::string format(const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return buffer;
}

std::string register_name(char file, unsigned first, unsigned count) {
  if (count == 1) return format("%c%u", file, first);
  return format("%c[%u:%u]", file, first, first + count - 1);
}

void Instruction::collect_ranges() {
  for (const Instruction* half = this; half; half = half->second.get())
    for (int i = 0; i < half->num_operands; ++i) {
      const Operand& operand = half->operand[i];
      const RegisterRange range{operand.index, operand.words};
      if (operand.kind == Kind::kVector) {
        if (operand.role & kRead) vector_reads.push_back(range);
        if (operand.role & kWrite) vector_writes.push_back(range);
      } else if (operand.kind == Kind::kScalar) {
        if (operand.role & kRead) scalar_reads.push_back(range);
        if (operand.role & kWrite) scalar_writes.push_back(range);
      }
    }
}

}  // namespace mxgemm::emulator
