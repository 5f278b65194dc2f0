// What an architecture gives to the executor, which knows none by name.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/instruction.h"

namespace mxgemm::emulator {

class AsyncOperation;
class Wave;
class Workgroup;

struct CounterRule {
  const char* name;        // as in the wait instruction: "dscnt"
  uint32_t maximum;        // the instruction after this many outstanding ones stalls
  bool in_order;           // otherwise only a wait for zero proves anything
  bool executes_in_order;  // a later operation of the same wave cannot overtake an earlier one's
                           // data movement
};

struct Architecture {
  const char* name;
  int lanes;
  int exec;         // scalar register number
  int null_scalar;  // reads as zero, drops writes; -1 for none
  std::vector<CounterRule> counters;
  std::vector<const char*> modifiers;  // names of Instruction::modifier slots
  const std::unordered_map<std::string, const Operation*>* operations;
  void (*start_wave)(Wave&);                  // architecture state, initial registers
  void (*before)(Wave&, const Instruction&);  // rules of issue; raises hazards
  void (*retired)(Wave&, int counter, const AsyncOperation&);
  std::string (*static_check)(const Instruction&);  // a rule broken by the operands alone, or ""
};

const Architecture& find_architecture(const std::string& name);

// Filled by the functions that define the operations.
class OperationTable {
 public:
  void add(Operation operation) {
    const std::string name = operation.name;
    by_name_[name] = new Operation(std::move(operation));  // for the life of the process
  }
  const std::unordered_map<std::string, const Operation*>& by_name() const { return by_name_; }

 private:
  std::unordered_map<std::string, const Operation*> by_name_;
};

}  // namespace mxgemm::emulator
