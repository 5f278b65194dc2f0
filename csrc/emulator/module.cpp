// Python bindings of the executor: programs, memory, launches. Everything that is policy or text
// lives in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>

#include "core/architecture.h"
#include "core/execute.h"
#include "core/memory.h"
#include "core/workgroup.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mxgemm::emulator {
namespace {

using Words = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>, nb::c_contig>;

// (kind, role, words, modifiers, index, value), as in Operand
using OperandTuple = std::tuple<int, int, int, int, int, uint64_t>;

std::unique_ptr<Instruction> make_instruction(const Architecture& architecture,
                                              const nb::dict& source, uint32_t pc) {
  auto instruction = std::make_unique<Instruction>();
  const auto name = nb::cast<std::string>(source["operation"]);
  const auto found = architecture.operations->find(name);
  if (found == architecture.operations->end())
    throw std::invalid_argument("the executor has no operation " + name);
  instruction->operation = found->second;
  instruction->pc = pc;
  instruction->text = nb::cast<std::string>(source["text"]);
  instruction->target = nb::cast<uint32_t>(source["target"]);
  for (const auto& [kind, role, words, modifiers, index, value] :
       nb::cast<std::vector<OperandTuple>>(source["operands"])) {
    if (instruction->num_operands == kMaxOperands)
      throw std::invalid_argument("too many operands: " + instruction->text);
    instruction->operand[instruction->num_operands++] = {
        Kind(kind), uint8_t(role), uint8_t(words), uint8_t(modifiers), uint16_t(index), value};
  }
  for (const auto& [key, value] : nb::cast<nb::dict>(source["modifiers"])) {
    const auto modifier = nb::cast<std::string>(key);
    size_t slot = 0;
    while (slot < architecture.modifiers.size() && modifier != architecture.modifiers[slot]) ++slot;
    if (slot == architecture.modifiers.size())
      throw std::invalid_argument("the executor has no modifier " + modifier);
    instruction->modifier[slot] = nb::cast<int64_t>(value);
  }
  if (source.contains("second"))
    instruction->second = make_instruction(architecture, nb::cast<nb::dict>(source["second"]), pc);
  return instruction;
}

std::shared_ptr<Program> make_program(const std::string& name, const nb::list& code) {
  auto program = std::make_shared<Program>();
  program->architecture = &find_architecture(name);
  for (size_t pc = 0; pc < code.size(); ++pc) {
    auto instruction =
        make_instruction(*program->architecture, nb::cast<nb::dict>(code[pc]), uint32_t(pc));
    instruction->collect_ranges();
    instruction->static_hazard = program->architecture->static_check(*instruction);
    program->code.push_back(std::move(instruction));
  }
  return program;
}

nb::dict to_dict(const Counters& counters) {
  nb::dict result;
  auto* executed = new std::vector<uint64_t>(counters.executed);
  nb::capsule owner(executed,
                    [](void* p) noexcept { delete static_cast<std::vector<uint64_t>*>(p); });
  result["executed"] =
      nb::ndarray<nb::numpy, uint64_t>(executed->data(), {executed->size()}, owner).cast();
  result["instructions"] = counters.instructions;
  result["lds_read_bytes"] = counters.lds_read_bytes;
  result["lds_written_bytes"] = counters.lds_written_bytes;
  result["lds_cycles"] = counters.lds_cycles;
  result["lds_conflict_cycles"] = counters.lds_conflict_cycles;
  result["tensor_load_bytes"] = counters.tensor_load_bytes;
  result["tensor_store_bytes"] = counters.tensor_store_bytes;
  result["global_read_bytes"] = counters.global_read_bytes;
  result["global_written_bytes"] = counters.global_written_bytes;
  result["lds_high_water"] = counters.lds_high_water;
  result["barriers"] = counters.barriers;
  return result;
}

nb::dict to_dict(const Fault& fault) {
  nb::dict result;
  result["kind"] = fault.kind;
  result["message"] = fault.message;
  result["resource"] = fault.resource;
  result["missing"] = fault.missing;
  result["pc"] = fault.pc;
  result["wave"] = fault.wave;
  result["workgroup"] = nb::make_tuple(fault.workgroup[0], fault.workgroup[1], fault.workgroup[2]);
  return result;
}

// A wave as a hook sees it, valid during the call only.
struct WaveView {
  Wave* wave;

  void check_vector(int i) const {
    if (i < 0 || i >= int(wave->workgroup.cluster.settings.vector_registers))
      throw nb::index_error("no such vector register");
  }
  nb::object vector(int i) const {
    check_vector(i);
    auto* copy = new uint32_t[wave->lanes];
    std::memcpy(copy, wave->vector(i), wave->lanes * sizeof(uint32_t));
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<uint32_t*>(p); });
    return nb::ndarray<nb::numpy, uint32_t>(copy, {size_t(wave->lanes)}, owner).cast();
  }
  void set_vector(int i, const Words& values) const {
    check_vector(i);
    if (values.shape(0) != size_t(wave->lanes))
      throw nb::value_error("one value per lane is needed");
    std::memcpy(wave->vector(i), values.data(), wave->lanes * sizeof(uint32_t));
    wave->mark_vector_written(i, 1, wave->all_lanes());
  }
  uint32_t scalar(int i) const {
    if (i < 0 || i >= kScalarRegisters) throw nb::index_error("no such scalar register");
    return wave->scalars[i];
  }
  void set_scalar(int i, uint32_t value) const {
    if (i < 0 || i >= kScalarRegisters) throw nb::index_error("no such scalar register");
    wave->set_scalar(i, value);
  }
  nb::object lds() const {
    const auto& bytes = wave->workgroup.lds;
    auto* copy = new std::vector<uint8_t>(bytes);
    nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
    return nb::ndarray<nb::numpy, uint8_t>(copy->data(), {copy->size()}, owner).cast();
  }
};

Hooks make_hooks(const nb::dict& functions) {
  Hooks hooks;
  const auto with_instruction = [](nb::object function) {
    return [function](Wave& wave, const Instruction& instruction) {
      nb::gil_scoped_acquire gil;
      function(WaveView{&wave}, instruction.pc);
    };
  };
  const auto plain = [](nb::object function) {
    return [function](Wave& wave) {
      nb::gil_scoped_acquire gil;
      function(WaveView{&wave});
    };
  };
  if (functions.contains("instruction"))
    hooks.instruction = with_instruction(functions["instruction"]);
  if (functions.contains("barrier")) hooks.barrier = with_instruction(functions["barrier"]);
  if (functions.contains("transfer")) hooks.transfer = with_instruction(functions["transfer"]);
  if (functions.contains("start")) hooks.start = plain(functions["start"]);
  if (functions.contains("end")) hooks.end = plain(functions["end"]);
  return hooks;
}

nb::dict launch(const std::shared_ptr<Program>& program, Memory& memory, const nb::dict& options,
                const nb::dict& functions, const std::vector<std::array<uint32_t, 3>>& clusters,
                int threads) {
  LaunchSettings settings;
  settings.grid = nb::cast<std::array<uint32_t, 3>>(options["grid"]);
  settings.block = nb::cast<std::array<uint32_t, 3>>(options["block"]);
  settings.cluster = nb::cast<std::array<uint32_t, 3>>(options["cluster"]);
  settings.kernarg = nb::cast<uint64_t>(options["kernarg"]);
  settings.lds_bytes = nb::cast<uint32_t>(options["lds_bytes"]);
  settings.scratch_bytes = nb::cast<uint32_t>(options["scratch_bytes"]);
  settings.vector_registers = nb::cast<uint32_t>(options["vector_registers"]);
  settings.workitem_id_dimensions = nb::cast<uint32_t>(options["workitem_id_dimensions"]);
  settings.timing = Timing(nb::cast<int>(options["timing"]));
  settings.seed = nb::cast<uint64_t>(options["seed"]);
  settings.max_instructions = nb::cast<uint64_t>(options["max_instructions"]);
  settings.detect_races = nb::cast<bool>(options["detect_races"]);
  settings.check_registers = nb::cast<bool>(options["check_registers"]);
  settings.count_conflicts = nb::cast<bool>(options["count_conflicts"]);
  settings.trace = nb::cast<bool>(options["trace"]);
  const bool hooked = functions.size() > 0;
  const Hooks hooks = make_hooks(functions);
  LaunchResult outcome;
  {
    nb::gil_scoped_release release;
    outcome = execute(*program, memory, settings, hooked ? &hooks : nullptr, clusters,
                      hooked ? 1 : threads);
  }
  nb::dict result;
  result["counters"] = to_dict(outcome.counters);
  result["fault"] = outcome.fault ? nb::object(to_dict(*outcome.fault)) : nb::none();
  auto* events = new std::vector<Event>(std::move(outcome.events));
  nb::capsule owner(events, [](void* p) noexcept { delete static_cast<std::vector<Event>*>(p); });
  static_assert(sizeof(Event) == 32);
  result["events"] = nb::ndarray<nb::numpy, uint32_t>(
                         events->data(), {events->size(), sizeof(Event) / sizeof(uint32_t)}, owner)
                         .cast();
  return result;
}

}  // namespace
}  // namespace mxgemm::emulator

NB_MODULE(_emulator, m) {
  using namespace mxgemm::emulator;
  nb::class_<Program>(m, "Program").def("__len__", [](const Program& p) { return p.code.size(); });
  nb::class_<WaveView>(m, "WaveView")
      .def_prop_ro("index", [](const WaveView& v) { return v.wave->index; })
      .def_prop_ro("workgroup", [](const WaveView& v) { return v.wave->workgroup.id; })
      .def_prop_ro("pc", [](const WaveView& v) { return v.wave->pc; })
      .def_prop_rw(
          "scc", [](const WaveView& v) { return v.wave->scc; },
          [](WaveView& v, bool value) { v.wave->scc = value; })
      .def_prop_ro("lds", &WaveView::lds)
      .def("vector", &WaveView::vector, "register"_a)
      .def("set_vector", &WaveView::set_vector, "register"_a, "values"_a)
      .def("scalar", &WaveView::scalar, "register"_a)
      .def("set_scalar", &WaveView::set_scalar, "register"_a, "value"_a);
  nb::class_<Memory>(m, "Memory")
      .def(nb::init<>())
      .def("map", [](Memory& memory, uint64_t base,
                     uint64_t size) { memory.map(base, size, nullptr, true); })
      .def("map_address",
           [](Memory& memory, uint64_t base, uint64_t size, uintptr_t host, bool writable) {
             memory.map(base, size, reinterpret_cast<void*>(host), writable);
           })
      .def("unmap", &Memory::unmap)
      .def("view", [](Memory& memory, uint64_t address, uint64_t size) {
        uint8_t* data;
        try {
          data = memory.at(address, size, false);
        } catch (const Fault& fault) {
          throw nb::value_error(fault.message.c_str());
        }
        return nb::ndarray<nb::numpy, uint8_t>(data, {size}, nb::find(memory)).cast();
      });
  m.def("operations", [](const std::string& architecture) {
    std::vector<std::string> names;
    for (const auto& [name, operation] : *find_architecture(architecture).operations)
      names.push_back(name);
    return names;
  });
  m.def("make_program", &make_program, "architecture"_a, "code"_a);
  m.def("launch", &launch, "program"_a, "memory"_a, "options"_a, "hooks"_a, "clusters"_a,
        "threads"_a);
}
