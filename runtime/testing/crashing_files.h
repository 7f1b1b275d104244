#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/file.h"
#include "core/status.h"

namespace fathom {

// Files in memory that know what a crash of the machine would leave of them: of a file what it held
// when it was last synced, of a directory the entries that it had. What came later is lost or
// there, as chance has it. After a set number of changes nothing changes any more, as if the
// machine had stopped there. For tests. Paths start with '/'; renaming works within one directory.
class CrashingFiles final : public FileSystem {
 public:
  enum class Lost { kAll, kNothing, kByChance };

  CrashingFiles() : root_(std::make_shared<Node>(/*directory=*/true)) {}

  // The machine stops after so many further changes; negative: never.
  void StopAfter(int64_t changes) {
    const std::lock_guard lock(mutex_);
    stop_at_ = changes < 0 ? -1 : changes_ + changes;
  }
  // Changes that were tried so far.
  int64_t changes() const {
    const std::lock_guard lock(mutex_);
    return changes_;
  }

  // What the machine finds when it starts again.
  std::unique_ptr<CrashingFiles> AfterCrash(Lost lost, uint32_t seed) const {
    const std::lock_guard lock(mutex_);
    std::mt19937 random(seed);
    auto files = std::make_unique<CrashingFiles>();
    std::map<const Node*, std::shared_ptr<Node>> copies;
    files->root_ = Survivor(*root_, lost, random, &copies);
    return files;
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Node> node = Find(path);
    if (node == nullptr || node->directory) return absl::NotFoundError("cannot open " + path);
    return std::make_unique<Contents>(node->data);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path) override {
    return Open(path, /*truncate=*/true);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return Open(path, /*truncate=*/false);
  }
  bool Exists(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    return Find(path) != nullptr;
  }
  bool IsDirectory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Node> node = Find(path);
    return node != nullptr && node->directory;
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Node> node = Find(directory);
    if (node == nullptr || !node->directory) return absl::NotFoundError("cannot list " + directory);
    std::vector<std::string> names;
    for (const auto& [name, entry] : node->entries) names.push_back(name);
    return names;
  }
  absl::Status CreateDirectories(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Node> node = root_;
    for (const std::string& name : Words(path)) {
      std::shared_ptr<Node>& entry = node->entries[name];
      if (entry == nullptr) {
        node->entries.erase(name);
        FATHOM_RETURN_IF_ERROR(Count(path));
        node->Change({{name, std::make_shared<Node>(/*directory=*/true)}});
      }
      node = node->entries.at(name);
      if (!node->directory) return absl::FailedPreconditionError(path + " is no directory");
    }
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    FATHOM_RETURN_IF_ERROR(Count(path));
    const std::shared_ptr<Node> node = Find(path);
    if (node == nullptr || !node->directory) return absl::NotFoundError("cannot sync " + path);
    node->synced_entries = node->entries;
    node->pending.clear();
    return absl::OkStatus();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    FATHOM_RETURN_IF_ERROR(Count(to));
    const auto [from_parent, from_name] = FindParent(from);
    const auto [to_parent, to_name] = FindParent(to);
    FATHOM_CHECK(from_parent != nullptr && from_parent == to_parent) << from << " to " << to;
    const std::shared_ptr<Node> node = Find(from);
    if (node == nullptr) return absl::NotFoundError("cannot rename " + from);
    const std::shared_ptr<Node> replaced = Find(to);
    if (replaced != nullptr && replaced->directory && !replaced->entries.empty()) {
      return absl::AlreadyExistsError("cannot rename " + from + " to " + to);
    }
    from_parent->Change({{from_name, nullptr}, {to_name, node}});
    return absl::OkStatus();
  }
  absl::Status Truncate(const std::string& path, int64_t size) override {
    const std::lock_guard lock(mutex_);
    FATHOM_RETURN_IF_ERROR(Count(path));
    Find(path)->data.resize(size);
    return absl::OkStatus();
  }
  absl::Status RemoveAll(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const auto [parent, name] = FindParent(path);
    if (parent == nullptr || parent->entries.count(name) == 0) return absl::OkStatus();
    return Remove(*parent, name, path);
  }

 private:
  struct Node {
    explicit Node(bool is_directory) : directory(is_directory) {}

    // Entries that change together; null: removed.
    using Entries = std::map<std::string, std::shared_ptr<Node>>;
    void Change(const Entries& change) {
      Apply(change, &entries);
      pending.push_back(change);
    }
    static void Apply(const Entries& change, Entries* to) {
      for (const auto& [name, node] : change) {
        if (node == nullptr) {
          to->erase(name);
        } else {
          (*to)[name] = node;
        }
      }
    }

    bool directory;
    Entries entries, synced_entries;
    std::vector<Entries> pending;  // changes since the last sync
    std::string data, synced_data;
  };

  class Contents final : public ReadableFile {
   public:
    explicit Contents(std::string data) : data_(std::move(data)) {}
    int64_t size() const override { return static_cast<int64_t>(data_.size()); }
    std::string_view contents() const override { return data_; }

   private:
    std::string data_;
  };

  class File final : public WritableFile {
   public:
    File(CrashingFiles& files, std::string path, std::shared_ptr<Node> node)
        : files_(files), path_(std::move(path)), node_(std::move(node)) {}
    absl::Status Append(std::string_view data) override {
      const std::lock_guard lock(files_.mutex_);
      const absl::Status status = files_.Count(path_);
      // The machine may stop in the middle of a write.
      node_->data.append(status.ok() ? data : data.substr(0, data.size() / 2));
      return status;
    }
    absl::Status Sync() override {
      const std::lock_guard lock(files_.mutex_);
      FATHOM_RETURN_IF_ERROR(files_.Count(path_));
      node_->synced_data = node_->data;
      return absl::OkStatus();
    }
    absl::Status Close() override { return absl::OkStatus(); }

   private:
    CrashingFiles& files_;
    std::string path_;
    std::shared_ptr<Node> node_;
  };

  static std::vector<std::string> Words(const std::string& path) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      if (end > begin) words.push_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return words;
  }

  // Null when there is none.
  std::shared_ptr<Node> Find(const std::string& path) const {
    std::shared_ptr<Node> node = root_;
    for (const std::string& name : Words(path)) {
      const auto entry = node->entries.find(name);
      if (entry == node->entries.end()) return nullptr;
      node = entry->second;
    }
    return node;
  }
  std::pair<std::shared_ptr<Node>, std::string> FindParent(const std::string& path) const {
    const size_t slash = path.rfind('/');
    FATHOM_CHECK(slash != std::string::npos) << path;
    return {Find(path.substr(0, slash)), path.substr(slash + 1)};
  }

  absl::Status Count(const std::string& path) {
    if (stop_at_ >= 0 && changes_ >= stop_at_) {
      ++changes_;
      return absl::UnavailableError("the machine has stopped before a change of " + path);
    }
    ++changes_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, bool truncate) {
    const std::lock_guard lock(mutex_);
    FATHOM_RETURN_IF_ERROR(Count(path));
    const auto [parent, name] = FindParent(path);
    if (parent == nullptr) return absl::NotFoundError("cannot open " + path);
    if (parent->entries.count(name) == 0) {
      parent->Change({{name, std::make_shared<Node>(/*directory=*/false)}});
    }
    const std::shared_ptr<Node> node = parent->entries.at(name);
    if (node->directory) return absl::FailedPreconditionError(path + " is a directory");
    if (truncate) node->data.clear();
    return std::make_unique<File>(*this, path, node);
  }

  absl::Status Remove(Node& parent, const std::string& name, const std::string& path) {
    const std::shared_ptr<Node> node = parent.entries.at(name);
    const Node::Entries inside = node->entries;
    for (const auto& [entry, child] : inside) {
      FATHOM_RETURN_IF_ERROR(Remove(*node, entry, path + "/" + entry));
    }
    FATHOM_RETURN_IF_ERROR(Count(path));
    parent.Change({{name, nullptr}});
    return absl::OkStatus();
  }

  static std::shared_ptr<Node> Survivor(const Node& node, Lost lost, std::mt19937& random,
                                        std::map<const Node*, std::shared_ptr<Node>>* copies) {
    std::shared_ptr<Node>& copy = (*copies)[&node];
    if (copy != nullptr) return copy;
    copy = std::make_shared<Node>(node.directory);
    const std::shared_ptr<Node> result = copy;
    const auto how_many = [&](size_t most) -> size_t {
      if (lost == Lost::kAll) return 0;
      return lost == Lost::kNothing ? most : random() % (most + 1);
    };
    // A file that has grown keeps some of what came; of what did not arrive there are zeros.
    result->data = node.synced_data;
    if (lost == Lost::kNothing) result->data = node.data;
    if (lost == Lost::kByChance && node.data.size() > node.synced_data.size()) {
      const size_t more = how_many(node.data.size() - node.synced_data.size());
      const size_t arrived = how_many(more);
      result->data = node.data.substr(0, node.synced_data.size() + arrived);
      result->data.append(more - arrived, '\0');
    }
    result->synced_data = result->data;
    Node::Entries entries = node.synced_entries;
    const size_t kept = how_many(node.pending.size());
    for (size_t i = 0; i < kept; ++i) Node::Apply(node.pending[i], &entries);
    for (const auto& [name, entry] : entries) {
      result->entries[name] = Survivor(*entry, lost, random, copies);
    }
    result->synced_entries = result->entries;
    return result;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Node> root_;
  int64_t changes_ = 0;
  int64_t stop_at_ = -1;
};

}  // namespace fathom
