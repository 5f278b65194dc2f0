// Everything that stops a run: one exception, turned into a typed Python exception at the edge.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace mxgemm::emulator {

struct Fault : std::exception {
  Fault(std::string kind, std::string message, std::string resource = "", std::string missing = "")
      : kind(std::move(kind)),
        message(std::move(message)),
        resource(std::move(resource)),
        missing(std::move(missing)) {}

  const char* what() const noexcept override { return message.c_str(); }

  std::string kind;      // names the Python class, see hazards.py
  std::string message;   // what happened
  std::string resource;  // register or byte range
  std::string missing;   // what would have made it defined
  int64_t pc = -1;
  int wave = -1;
  uint32_t workgroup[3] = {0, 0, 0};
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string register_name(char file, unsigned first, unsigned count);

}  // namespace mxgemm::emulator
