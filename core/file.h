#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fathom {

// A file being written from its start. Close must be called before destruction for the data to
// count; a file that is destroyed unclosed may hold anything.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::string_view data) = 0;
  // Until Sync returns OK, a crash of the machine may lose the data.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// A file read at any offset, by many threads.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  // The whole file, mapped; valid while this object lives.
  virtual std::string_view contents() const = 0;
  // DataLoss when the file was written to or cut since it was opened: what a file lost must not be
  // read, and what changed is not what was checked. A file that another one took the name of stays
  // as it was.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
};

// All that the product does with files goes through here, so that tests can let it fail. Errors
// name the path and carry the system's reason. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Maps a file. NotFound when there is none.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) = 0;
  // Creates or truncates.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path) = 0;
  // Creates, or continues at the end.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual bool IsDirectory(const std::string& path) = 0;
  // Names (not paths) in a directory, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // With parents; fine when it exists already.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Makes the entries of a directory durable.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Atomic within one file system; replaces a file at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Truncate(const std::string& path, int64_t size) = 0;
  // A file, or a directory with all that it holds; fine when it is missing.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
};

// The machine's own files.
FileSystem& PosixFileSystem();

// A whole small file as a string.
absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path);

// Writes aside, syncs and renames, so that `path` holds the old or the new contents at any moment.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view data);

// Creates a directory, and those above it, and makes the entries of all that were missing durable.
absl::Status CreateDurableDirectories(FileSystem& files, const std::string& path);

// A name beside `path`, "PATH.tmp-RANDOM", to write to before renaming. It differs at every call,
// in every process.
std::string TemporaryPath(const std::string& path);

// "a/b" from "a" and "b".
std::string JoinPath(std::string_view directory, std::string_view name);

}  // namespace fathom
