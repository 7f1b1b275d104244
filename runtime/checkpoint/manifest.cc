#include "runtime/checkpoint/manifest.h"

#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checksum.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "fathom-checkpoint";
constexpr int64_t kVersion = 1;
// Quotes inside JSON strings are escaped, so this finds the field and nothing else.
constexpr std::string_view kChecksumField = "\"manifest_checksum\": \"";
constexpr size_t kChecksumDigits = 16;

// Checksum of the text with zeros where its own digits stand at `position`.
uint64_t SelfChecksum(std::string text, size_t position) {
  text.replace(position, kChecksumDigits, kChecksumDigits, '0');
  return Checksum(text);
}

bool IsCount(const Json& object, const char* field) {
  return object.contains(field) && object[field].is_number_unsigned();
}

bool IsString(const Json& object, const char* field) {
  return object.contains(field) && object[field].is_string();
}

bool ParseFiles(const Json& json, std::vector<ManifestFile>* files) {
  for (const Json& entry : json) {
    if (!entry.is_object() || !IsString(entry, "name") || !IsString(entry, "checksum") ||
        !IsCount(entry, "size") || !IsCount(entry, "tensors")) {
      return false;
    }
    files->push_back({entry["name"].get<std::string>(), entry["size"].get<int64_t>(),
                      std::strtoull(entry["checksum"].get<std::string>().c_str(), nullptr, 16),
                      entry["tensors"].get<int64_t>()});
  }
  return true;
}

bool ParseState(const Json& json, Manifest* manifest) {
  if (!json.contains("integers") || !json.contains("numbers")) return false;
  for (const auto& [name, value] : json["integers"].items()) {
    if (!value.is_number_integer()) return false;
    manifest->integers[name] = value.get<int64_t>();
  }
  for (const auto& [name, value] : json["numbers"].items()) {
    // JSON has no NaN and no infinity; both are written as null.
    if (!value.is_number() && !value.is_null()) return false;
    manifest->numbers[name] =
        value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  }
  return true;
}

bool ParseFields(const Json& json, Manifest* manifest) {
  if (!IsCount(json, "step") || !IsCount(json, "consumed_sequences") || !IsString(json, "job") ||
      !json.contains("files") || !json["files"].is_array() || !json.contains("state") ||
      !json["state"].is_object()) {
    return false;
  }
  manifest->step = json["step"].get<int64_t>();
  manifest->consumed_sequences = json["consumed_sequences"].get<int64_t>();
  manifest->job_text = json["job"].get<std::string>();
  return ParseFiles(json["files"], &manifest->files) && ParseState(json["state"], manifest);
}

}  // namespace

std::string FormatManifest(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["manifest_checksum"] = std::string(kChecksumDigits, '0');
  json["step"] = manifest.step;
  json["consumed_sequences"] = manifest.consumed_sequences;
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    nlohmann::ordered_json entry;
    entry["name"] = file.name;
    entry["size"] = file.size;
    entry["checksum"] = Hex(file.checksum);
    entry["tensors"] = file.tensors;
    json["files"].push_back(std::move(entry));
  }
  json["state"]["integers"] = manifest.integers;
  json["state"]["numbers"] = manifest.numbers;
  json["job"] = manifest.job_text;
  std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text += '\n';
  const size_t position = text.find(kChecksumField) + kChecksumField.size();
  return text.replace(position, kChecksumDigits, Hex(SelfChecksum(text, position)));
}

absl::StatusOr<Manifest> ParseManifest(const std::string& path, std::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !IsString(json, "format") || json["format"] != kFormat ||
      !IsCount(json, "version")) {
    return absl::DataLossError(absl::StrCat(path, " is not the manifest of a checkpoint"));
  }
  // Before the checksum, whose rules a newer version may have changed.
  const uint64_t version = json["version"].get<uint64_t>();
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has version ", version,
                     " of the checkpoint format, and this program reads up to version ", kVersion));
  }
  const size_t found = text.find(kChecksumField);
  const size_t position = found + kChecksumField.size();
  Manifest manifest;
  if (found == std::string_view::npos || position + kChecksumDigits > text.size() ||
      text.substr(position, kChecksumDigits) != Hex(SelfChecksum(std::string(text), position)) ||
      !ParseFields(json, &manifest)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: it does not match its checksum"));
  }
  return manifest;
}

}  // namespace fathom
