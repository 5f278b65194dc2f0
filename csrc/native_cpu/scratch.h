// Memory that calls borrow and give back, so that a steady stream of GEMMs allocates nothing.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace mxgemm {

// A block aligned for cache lines (huge pages where it is large); contents are undefined.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // Grows to at least `bytes`; what it held is lost when it has to grow.
  void reserve(size_t bytes);
  template <class T = unsigned char>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What one call works in: memory for everyone and memory for each thread.
struct Workspace {
  Buffer shared, scales, rows, partial;
  std::vector<Buffer> thread_columns, thread_tiles;
};

// Makes room for the scratch memory of that many threads.
void reserve_threads(Workspace& workspace, int threads);

// A workspace for the lifetime of this object; concurrent calls get different ones.
class BorrowedWorkspace {
 public:
  BorrowedWorkspace();
  ~BorrowedWorkspace();
  BorrowedWorkspace(const BorrowedWorkspace&) = delete;
  BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;
  Workspace* operator->() const { return workspace_.get(); }
  Workspace& operator*() const { return *workspace_; }

 private:
  std::unique_ptr<Workspace> workspace_;
};

// Memory of a large result: what an earlier one left behind, where it fits. To touch new memory for
// the first time can take longer than what is computed into it.
Buffer take_result(size_t bytes);
// Keeps the memory of a result that nobody holds any more, up to a limit over all.
void give_result_back(Buffer&& buffer);

}  // namespace mxgemm
