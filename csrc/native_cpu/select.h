// Which instruction sets this processor has, and the kernels in use.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace mxgemm {

// Names of the instruction sets that this build has kernels for, best first.
std::vector<std::string> built_isas();

// Names of the instruction sets that this processor and this build have, best first.
std::vector<std::string> available_isas();

// The kernels of one of them, or of the best for "".
// Throws std::invalid_argument where the name is unknown or the processor lacks it.
const Kernels& select_kernels(const std::string& isa);

}  // namespace mxgemm
