#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

#include "core/status.h"

namespace fathom {
namespace {

// "cannot WHAT PATH: the system's reason".
absl::Status SystemError(int error, std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", std::string(what), " ", path));
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(int descriptor, std::string path)
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  absl::Status Append(std::string_view data) override {
    while (!data.empty()) {
      const ssize_t written = ::write(descriptor_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(errno, "write to", path_);
      data.remove_prefix(written);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(descriptor_) != 0) return SystemError(errno, "sync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && ::close(descriptor) != 0) return SystemError(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  int descriptor_;
  std::string path_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(void* data, const struct stat& opened, std::string path)
      : data_(data), opened_(opened), path_(std::move(path)) {}
  ~PosixReadableFile() override {
    if (data_ != nullptr) ::munmap(data_, opened_.st_size);
  }

  int64_t size() const override { return opened_.st_size; }
  std::string_view contents() const override {
    return std::string_view(static_cast<const char*>(data_), opened_.st_size);
  }
  absl::Status CheckUnchanged() const override {
    // By its name, so that a file needs no descriptor while it is open. Removed, or another file by
    // that name: the mapping still has what was opened.
    struct stat now;
    if (::stat(path_.c_str(), &now) != 0 || now.st_ino != opened_.st_ino ||
        now.st_dev != opened_.st_dev) {
      return absl::OkStatus();
    }
    if (now.st_size == opened_.st_size && now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(path_, " was changed while it was in use"));
  }

 private:
  void* data_;  // null when the file is empty
  const struct stat opened_;
  const std::string path_;
};

absl::StatusOr<std::unique_ptr<WritableFile>> OpenWith(int flags, const std::string& path) {
  const int descriptor = ::open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) return SystemError(errno, "open for writing", path);
  return std::make_unique<PosixWritableFile>(descriptor, path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MapDescriptor(int descriptor,
                                                            const std::string& path) {
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return SystemError(errno, "read", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is not a file"));
  }
  void* data = nullptr;
  if (status.st_size > 0) {
    data = ::mmap(nullptr, status.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) return SystemError(errno, "map", path);
  }
  return std::make_unique<PosixReadableFile>(data, status, path);
}

class PosixFiles final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    // Does not wait for who writes to a pipe, which is refused.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return SystemError(errno, "open", path);
    auto file = MapDescriptor(descriptor, path);
    ::close(descriptor);  // the mapping stays
    return file;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path) override {
    return OpenWith(O_TRUNC, path);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return OpenWith(O_APPEND, path);
  }

  bool Exists(const std::string& path) override {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }

  bool IsDirectory(const std::string& path) override {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    std::error_code error;
    std::filesystem::directory_iterator entry(directory, error);
    std::vector<std::string> names;
    while (!error && entry != std::filesystem::directory_iterator()) {
      names.push_back(entry->path().filename().string());
      entry.increment(error);
    }
    if (error) return SystemError(error.value(), "list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status CreateDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (!error && !IsDirectory(path)) error = std::make_error_code(std::errc::not_a_directory);
    if (error) return SystemError(error.value(), "create directory", path);
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return SystemError(errno, "open directory", path);
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    if (error != 0) return SystemError(error, "sync directory", path);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      return SystemError(errno, "rename", absl::StrCat(from, " to ", to));
    }
    return absl::OkStatus();
  }

  absl::Status Truncate(const std::string& path, int64_t size) override {
    if (::truncate(path.c_str(), size) != 0) return SystemError(errno, "truncate", path);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return SystemError(error.value(), "remove", path);
    return absl::OkStatus();
  }
};

std::string Directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status WriteAndSync(FileSystem& files, const std::string& path, std::string_view data) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.OpenForWrite(path));
  FATHOM_RETURN_IF_ERROR(file->Append(data));
  FATHOM_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

FileSystem& PosixFileSystem() {
  static PosixFiles files;
  return files;
}

absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.OpenForRead(path));
  return std::string(file->contents());
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 std::string_view data) {
  const std::string temporary = TemporaryPath(path);
  absl::Status status = WriteAndSync(files, temporary, data);
  if (status.ok()) status = files.Rename(temporary, path);
  if (!status.ok()) {
    files.RemoveAll(temporary).IgnoreError();
    return status;
  }
  return files.SyncDirectory(Directory(path));
}

absl::Status CreateDurableDirectories(FileSystem& files, const std::string& path) {
  if (files.IsDirectory(path)) return absl::OkStatus();
  const std::string parent = Directory(path);
  if (parent != path) FATHOM_RETURN_IF_ERROR(CreateDurableDirectories(files, parent));
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(path));
  return files.SyncDirectory(parent);
}

std::string TemporaryPath(const std::string& path) {
  // Processes on several machines may share the directory, and in containers even process ids
  // repeat, so the name is drawn from the system's random numbers.
  static std::atomic<uint32_t> counter = std::random_device()();
  const uint32_t random = std::random_device()();
  char suffix[40];
  std::snprintf(suffix, sizeof(suffix), ".tmp-%08x%08x", random, counter++);
  return path + suffix;
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

}  // namespace fathom
