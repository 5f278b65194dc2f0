#include "scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace mxgemm {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Vector loads may read up to this much past the last element.
constexpr size_t kSlack = 64;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Idle results beyond this are freed.
constexpr size_t kIdleResultBytes = size_t{256} << 20;

struct Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> idle;
  std::vector<Buffer> results;
  size_t result_bytes = 0;
};

Pool& pool() {
  static auto* instance = new Pool;  // never destroyed: a thread may still run at exit
  return *instance;
}

}  // namespace

Buffer::Buffer(size_t bytes) { reserve(bytes); }
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
Buffer::~Buffer() { std::free(data_); }

void Buffer::reserve(size_t bytes) {
  if (bytes <= bytes_ && data_) return;
  std::free(data_);
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  const size_t size = round_up(bytes + kSlack, alignment);
  data_ = std::aligned_alloc(alignment, size);
  bytes_ = data_ ? bytes : 0;
  if (!data_) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(data_, size, MADV_HUGEPAGE);
}

void reserve_threads(Workspace& workspace, int threads) {
  const auto count = static_cast<size_t>(std::max(threads, 1));
  if (workspace.thread_columns.size() < count) workspace.thread_columns.resize(count);
  if (workspace.thread_tiles.size() < count) workspace.thread_tiles.resize(count);
}

BorrowedWorkspace::BorrowedWorkspace() {
  Pool& shared = pool();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.idle.empty()) {
    workspace_ = std::make_unique<Workspace>();
  } else {
    workspace_ = std::move(shared.idle.back());
    shared.idle.pop_back();
  }
}

BorrowedWorkspace::~BorrowedWorkspace() {
  Pool& shared = pool();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.idle.push_back(std::move(workspace_));
}

Buffer take_result(size_t bytes) {
  Pool& shared = pool();
  {
    const std::lock_guard<std::mutex> lock(shared.mutex);
    for (Buffer& idle : shared.results) {
      if (idle.bytes() < bytes || idle.bytes() > bytes + bytes / 4) continue;
      Buffer taken = std::move(idle);
      std::swap(idle, shared.results.back());
      shared.results.pop_back();
      shared.result_bytes -= taken.bytes();
      return taken;
    }
  }
  return Buffer(bytes);
}

void give_result_back(Buffer&& buffer) {
  Pool& shared = pool();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.result_bytes + buffer.bytes() > kIdleResultBytes) return;
  shared.result_bytes += buffer.bytes();
  shared.results.push_back(std::move(buffer));
}

}  // namespace mxgemm
