#include "runtime/checkpoint/manifest.h"

#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "google/protobuf/util/json_util.h"
#include "proto/checkpoint.pb.h"
#include "runtime/checksum.h"

namespace fathom {
namespace {

using ManifestMessage = proto::CheckpointManifest;
using TensorMessage = ManifestMessage::Tensor;

constexpr char kFormat[] = "fathom-checkpoint";
constexpr int32_t kVersion = 2;
// Quotes inside JSON strings are escaped, so this finds the field and nothing else.
constexpr std::string_view kChecksumField = "\"manifest_checksum\": \"";
constexpr size_t kChecksumDigits = 16;

constexpr struct {
  DType dtype;
  TensorMessage::DType message;
} kDTypes[] = {{DType::kFloat32, TensorMessage::F32},
               {DType::kFloat64, TensorMessage::F64},
               {DType::kBFloat16, TensorMessage::BF16},
               {DType::kInt32, TensorMessage::I32},
               {DType::kInt64, TensorMessage::I64}};

TensorMessage::DType ToMessage(DType dtype) {
  for (const auto& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.message;
  }
  FATHOM_CHECK(false) << "no such dtype";
  return TensorMessage::F32;
}

DType FromMessage(TensorMessage::DType dtype) {
  for (const auto& entry : kDTypes) {
    if (entry.message == dtype) return entry.dtype;
  }
  FATHOM_CHECK(false) << "no such dtype";
  return DType::kFloat32;
}

// Checksum of the text with zeros where its own digits stand at `position`.
uint64_t SelfChecksum(std::string text, size_t position) {
  text.replace(position, kChecksumDigits, kChecksumDigits, '0');
  return Checksum(text);
}

void WriteSlice(const ManifestTensor& tensor, const ManifestSlice& from,
                ManifestMessage::Slice* to) {
  to->set_file(from.file);
  to->set_offset(from.offset);
  const auto& [part, range] = from.slice;
  if (!part.whole()) {
    to->mutable_box()->set_dim(part.dim);
    to->mutable_box()->set_begin(part.begin);
    to->mutable_box()->set_end(part.end);
  }
  if (range != ElementRange{0, part.ShapeOf(tensor.shape).elements()}) {
    to->mutable_range()->set_begin(range.begin);
    to->mutable_range()->set_end(range.end);
  }
}

// Files and tensors.
void WritePart(const Manifest& from, ManifestMessage* to) {
  for (const ManifestFile& file : from.files) {
    ManifestMessage::File* message = to->add_files();
    message->set_name(file.name);
    message->set_size(file.size);
    message->mutable_block_checksums()->Add(file.blocks.begin(), file.blocks.end());
  }
  for (const ManifestTensor& tensor : from.tensors) {
    TensorMessage* message = to->add_tensors();
    message->set_name(tensor.name);
    message->set_kind(tensor.kind == TensorKind::kWeight ? TensorMessage::WEIGHT
                                                         : TensorMessage::OPTIMIZER);
    message->set_dtype(ToMessage(tensor.dtype));
    for (int i = 0; i < tensor.shape.rank(); ++i) message->add_shape(tensor.shape[i]);
    for (const ManifestSlice& slice : tensor.slices) {
      WriteSlice(tensor, slice, message->add_slices());
    }
  }
}

// A dim, or the product of dims, may not be so large that sizes in bytes overflow.
constexpr int64_t kMostElements = int64_t{1} << 56;

bool ReadShape(const TensorMessage& message, Shape* shape) {
  if (message.shape_size() > Shape::kMaximumRank) return false;
  int64_t elements = 1;
  for (const int64_t dim : message.shape()) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements) || elements > kMostElements) {
      return false;
    }
    shape->Append(dim);
  }
  return true;
}

// False when it does not lie in the tensor.
bool ReadSlice(const ManifestMessage::Slice& from, const Shape& shape, ManifestSlice* to) {
  to->file = from.file();
  to->offset = from.offset();
  TensorPart& part = to->slice.part;
  if (from.has_box()) {
    part = {from.box().dim(), from.box().begin(), from.box().end()};
    // Parts are rows, or columns of a matrix: see VisitRuns.
    const bool rows = part.dim == 0 && shape.rank() > 0;
    const bool columns = part.dim == 1 && shape.rank() == 2;
    if (!rows && !columns) return false;
    if (part.begin < 0 || part.begin >= part.end || part.end > shape[part.dim]) return false;
  }
  const int64_t elements = part.ShapeOf(shape).elements();
  to->slice.range = {0, elements};
  if (from.has_range()) to->slice.range = {from.range().begin(), from.range().end()};
  const ElementRange& range = to->slice.range;
  return range.begin >= 0 && range.begin <= range.end && range.end <= elements && to->file >= 0 &&
         to->offset >= 0;
}

bool ReadPart(const ManifestMessage& from, Manifest* to) {
  for (const ManifestMessage::File& file : from.files()) {
    to->files.push_back(
        {file.name(), file.size(), {file.block_checksums().begin(), file.block_checksums().end()}});
    const int64_t blocks = (file.size() + kBlockBytes - 1) / kBlockBytes;
    if (file.size() < 0 || file.block_checksums_size() != blocks) return false;
  }
  for (const TensorMessage& message : from.tensors()) {
    ManifestTensor tensor{.name = message.name(),
                          .kind = message.kind() == TensorMessage::WEIGHT ? TensorKind::kWeight
                                                                          : TensorKind::kOptimizer,
                          .dtype = FromMessage(message.dtype()),
                          .shape = {},
                          .slices = {}};
    if (!ReadShape(message, &tensor.shape)) return false;
    for (const ManifestMessage::Slice& slice : message.slices()) {
      if (!ReadSlice(slice, tensor.shape, &tensor.slices.emplace_back())) return false;
      const ManifestSlice& read = tensor.slices.back();
      if (read.file >= from.files_size()) return false;
      const int64_t room = from.files(read.file).size() - read.offset;
      if (read.slice.elements() * SizeOf(tensor.dtype) > room) return false;
    }
    to->tensors.push_back(std::move(tensor));
  }
  return true;
}

// The name of a tensor whose slices do not have as many elements as itself; "" when there is none.
std::string TensorThatDoesNotAddUp(const Manifest& manifest) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    int64_t elements = 0;
    for (const ManifestSlice& slice : tensor.slices) elements += slice.slice.elements();
    if (elements != tensor.shape.elements()) return tensor.name;
  }
  return "";
}

absl::Status CheckVersion(const std::string& path, const std::string& text) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  proto::CheckpointHeader header;
  if (!google::protobuf::util::JsonStringToMessage(text, &header, options).ok() ||
      header.format() != kFormat) {
    return absl::DataLossError(absl::StrCat(path, " is not the manifest of a checkpoint"));
  }
  // Before the checksum, whose rules another version may have changed.
  if (header.version() != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has version ", header.version(),
                                                      " of the checkpoint format, and this program "
                                                      "reads version ",
                                                      kVersion));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FormatManifest(const Manifest& manifest) {
  ManifestMessage message;
  message.set_format(kFormat);
  message.set_version(kVersion);
  message.set_manifest_checksum(std::string(kChecksumDigits, '0'));
  message.set_step(manifest.step);
  message.set_consumed_sequences(manifest.consumed_sequences);
  message.mutable_mesh()->set_pipeline(manifest.mesh.pipeline);
  message.mutable_mesh()->set_data(manifest.mesh.data);
  message.mutable_mesh()->set_context(manifest.mesh.context);
  message.mutable_mesh()->set_tensor(manifest.mesh.tensor);
  for (const auto& [name, value] : manifest.integers) {
    ManifestMessage::NamedInteger* entry = message.add_integers();
    entry->set_name(name);
    entry->set_value(value);
  }
  for (const auto& [name, value] : manifest.numbers) {
    ManifestMessage::NamedNumber* entry = message.add_numbers();
    entry->set_name(name);
    entry->set_value(value);
  }
  WritePart(manifest, &message);
  message.set_job(manifest.job_text);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  FATHOM_CHECK(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  const size_t position = text.find(kChecksumField) + kChecksumField.size();
  return text.replace(position, kChecksumDigits, Hex(SelfChecksum(text, position)));
}

absl::StatusOr<Manifest> ParseManifest(const std::string& path, std::string_view text) {
  const std::string json(text);
  FATHOM_RETURN_IF_ERROR(CheckVersion(path, json));
  const auto damaged = [&](const std::string& why) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", why));
  };
  const size_t found = text.find(kChecksumField);
  const size_t position = found + kChecksumField.size();
  ManifestMessage message;
  if (found == std::string_view::npos || position + kChecksumDigits > text.size() ||
      text.substr(position, kChecksumDigits) != Hex(SelfChecksum(json, position)) ||
      !google::protobuf::util::JsonStringToMessage(json, &message).ok()) {
    return damaged("it does not match its checksum");
  }
  Manifest manifest{.step = message.step(),
                    .consumed_sequences = message.consumed_sequences(),
                    .job_text = message.job(),
                    .mesh = {.pipeline = message.mesh().pipeline(),
                             .data = message.mesh().data(),
                             .context = message.mesh().context(),
                             .tensor = message.mesh().tensor()},
                    .files = {},
                    .tensors = {},
                    .integers = {},
                    .numbers = {}};
  for (const auto& entry : message.integers()) manifest.integers[entry.name()] = entry.value();
  for (const auto& entry : message.numbers()) manifest.numbers[entry.name()] = entry.value();
  if (!ReadPart(message, &manifest)) return damaged("a file or tensor in it makes no sense");
  if (const std::string tensor = TensorThatDoesNotAddUp(manifest); !tensor.empty()) {
    return damaged(absl::StrCat("the slices of ", tensor, " do not make it up"));
  }
  return manifest;
}

std::string PackPart(const Manifest& part) {
  ManifestMessage message;
  WritePart(part, &message);
  return message.SerializeAsString();
}

absl::Status AddPart(std::string_view packed, Manifest* manifest) {
  ManifestMessage message;
  Manifest part;
  if (!message.ParseFromArray(packed.data(), static_cast<int>(packed.size())) ||
      !ReadPart(message, &part)) {
    return absl::DataLossError("a rank's part of the manifest is no such message");
  }
  const int first_file = static_cast<int>(manifest->files.size());
  for (ManifestFile& file : part.files) manifest->files.push_back(std::move(file));
  std::map<std::pair<TensorKind, std::string>, size_t> places;
  for (size_t i = 0; i < manifest->tensors.size(); ++i) {
    places[{manifest->tensors[i].kind, manifest->tensors[i].name}] = i;
  }
  for (ManifestTensor& tensor : part.tensors) {
    for (ManifestSlice& slice : tensor.slices) slice.file += first_file;
    const auto [place, is_new] =
        places.try_emplace({tensor.kind, tensor.name}, manifest->tensors.size());
    if (is_new) {
      manifest->tensors.push_back(std::move(tensor));
      continue;
    }
    std::vector<ManifestSlice>& slices = manifest->tensors[place->second].slices;
    slices.insert(slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  return absl::OkStatus();
}

}  // namespace fathom
