// SPDX-License-Identifier: MIT
#include "support/caller_stores.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace sluice::support {

void FileStore::with(const std::function<void(Keys&)>& call) {
  // The lock ends with the descriptor, also that of a process that is killed.
  const int lock = ::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || ::flock(lock, LOCK_EX) != 0) throw std::runtime_error("no lock for " + path_);
  Keys keys;
  std::ifstream in(path_, std::ios::binary);
  std::size_t key_bytes = 0;
  std::size_t value_bytes = 0;
  while (in >> key_bytes >> value_bytes && in.get() == '\n') {
    std::string key(key_bytes, '\0');
    std::string value(value_bytes, '\0');
    in.read(key.data(), static_cast<std::streamsize>(key_bytes));
    in.read(value.data(), static_cast<std::streamsize>(value_bytes));
    keys[key] = value;
  }
  const Keys before = keys;
  call(keys);
  if (keys != before) {
    // Renamed into place: one who is killed in the middle leaves the old one.
    std::ostringstream text;
    for (const auto& [key, value] : keys) {
      text << key.size() << ' ' << value.size() << '\n' << key << value;
    }
    std::ofstream(path_ + ".new", std::ios::binary) << text.str();
    std::filesystem::rename(path_ + ".new", path_);
  }
  ::close(lock);
}

ScratchDirectory::ScratchDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "sluice-store-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no directory " + path);
  path_ = path;
}

}  // namespace sluice::support
