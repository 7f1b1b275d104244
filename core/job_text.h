#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

// Jobs as text and by field path, through protobuf reflection. Used by core/job.cc only. Errors are
// InvalidArgument.
namespace fathom {

// Parses text format into `message`, which must be empty. A field that does not exist or is given
// twice is an error, which names line and column and what could stand there.
absl::Status ParseTextFormat(const std::string& text, google::protobuf::Message* message);

// Applies one override "path.to.field=value". Strings need no quotes; a message or a list takes
// text format, such as "model.plan=[{repeat: 2 dense {}}]"; a list of strings takes one string too.
// The new value replaces the old one whole.
absl::Status ApplyOverride(const std::string& override_text, google::protobuf::Message* message);

// Sets every field that is not set and has a declared default, except inside lists.
void FillDefaults(google::protobuf::Message* message);

// A field and the message that holds it.
struct FieldPlace {
  google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* field;

  bool is_set() const;
  // The field's value as text format prints it; its default when it is not set.
  std::string value_text() const;
  // Whether the value is the declared default, or the type's own when none is declared.
  bool is_default() const;
};

// The field at a path such as "model.d". The error says which part of the path is unknown and which
// fields exist there.
absl::StatusOr<FieldPlace> FindField(std::string_view path, google::protobuf::Message* message);

// The path of the first floating-point field that is not finite, or "" when all are.
std::string FindNonFinite(const google::protobuf::Message& message);

}  // namespace fathom
