// Asks for packed codes of a panel long before they are read: into the second-level cache, which
// can wait for more lines at once than the first one. Included inside an anonymous namespace.

constexpr int kAheadBytes = 4096;

inline void ask_ahead(const uint8_t* codes) {
  _mm_prefetch(reinterpret_cast<const char*>(codes + kAheadBytes), _MM_HINT_T1);
}
