#include "core/job_text.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace fathom {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// Deeper nesting of groups than any plan needs; the parser calls itself for each level.
constexpr int kMaximumDepth = 50;

bool IsMessage(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}
bool IsString(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

std::string FieldNames(const Descriptor* descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor->field_count(); ++i) {
    names.push_back(descriptor->field(i)->name());
  }
  if (names.empty()) return "no fields";
  return absl::StrCat("the fields ", absl::StrJoin(names, ", "));
}

std::string ValueNames(const EnumDescriptor* descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor->value_count(); ++i) {
    names.push_back(descriptor->value(i)->name());
  }
  return absl::StrJoin(names, ", ");
}

// "Model.gate is one of XMOD, MOD, NONE" for every enum field of this name in `descriptor` and the
// messages that it holds directly: the parser's error does not say which message it was in.
void DescribeEnums(const Descriptor* descriptor, const std::string& name,
                   std::vector<std::string>* descriptions) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->name() == name && field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      descriptions->push_back(absl::StrCat(name, " of ", descriptor->name(), " is one of ",
                                           ValueNames(field->enum_type())));
    }
    // Only downward from a job: plans nest in themselves.
    if (IsMessage(field) && !field->is_repeated() && field->message_type() != descriptor) {
      DescribeEnums(field->message_type(), name, descriptions);
    }
  }
}

// The part of `text` between `before` and the next quotation mark, or "" when it is not there.
std::string Quoted(const std::string& text, const std::string& before) {
  const size_t found = text.find(before);
  if (found == std::string::npos) return "";
  const size_t begin = found + before.size();
  return text.substr(begin, text.find('"', begin) - begin);
}

// Keeps the parser's first error, with what could stand in its place added.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const Descriptor* root) : root_(root) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!message_.empty()) return;
    line_ = line;
    column_ = column;
    message_ = Explain(message);
  }

  const std::string& message() const { return message_; }
  std::string message_with_place() const {
    return absl::StrCat("line ", line_ + 1, ", column ", column_ + 1, ": ", message_);
  }

 private:
  std::string Explain(std::string message) const {
    message = std::string(absl::StripSuffix(message, "."));
    const std::string type = Quoted(message, "Message type \"");
    if (!type.empty()) {
      const Descriptor* descriptor = root_->file()->pool()->FindMessageTypeByName(type);
      if (descriptor == nullptr) return message;
      return absl::StrCat(descriptor->name(), " has no field named \"",
                          Quoted(message, "has no field named \""), "\"; it has ",
                          FieldNames(descriptor));
    }
    const std::string enum_field = Quoted(message, "for field \"");
    if (!enum_field.empty()) {
      std::vector<std::string> descriptions;
      DescribeEnums(root_, enum_field, &descriptions);
      if (!descriptions.empty())
        return absl::StrCat(message, "; ", absl::StrJoin(descriptions, "; "));
    }
    return message;
  }

  const Descriptor* root_;
  int line_ = 0;
  int column_ = 0;
  std::string message_;
};

// Whether the value of a string field is written as text format writes it.
bool IsQuoted(std::string_view value) {
  return value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
         value.back() == value.front();
}

// Sets a string field, or a list of strings to one string, as the value stands.
void SetString(const FieldPlace& place, const std::string& value) {
  const Reflection* reflection = place.message->GetReflection();
  reflection->ClearField(place.message, place.field);
  if (place.field->is_repeated()) {
    reflection->AddString(place.message, place.field, value);
  } else {
    reflection->SetString(place.message, place.field, value);
  }
}

// Sets a field from its value in text format.
absl::Status SetFromTextFormat(const FieldPlace& place, const std::string& path,
                               const std::string& value) {
  std::unique_ptr<Message> parsed(place.message->New());
  FirstError error(parsed->GetDescriptor());
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMaximumDepth);
  const Reflection* reflection = place.message->GetReflection();
  if (!parser.ParseFromString(absl::StrCat(place.field->name(), ": ", value), parsed.get())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " cannot be set to \"", value, "\": ", error.message()));
  }
  // A value that goes on after its end would set other fields as well.
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(*parsed, &set);
  if (set.size() > 1 || (set.size() == 1 && set[0] != place.field)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " cannot be set to \"", value, "\": this is more than one value"));
  }
  reflection->SwapFields(place.message, parsed.get(), {place.field});
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseTextFormat(const std::string& text, Message* message) {
  FirstError error(message->GetDescriptor());
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMaximumDepth);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  return absl::InvalidArgumentError(error.message_with_place());
}

absl::Status ApplyOverride(const std::string& override_text, Message* message) {
  const size_t equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the setting \"", override_text, "\" is not of the form path.to.field=value"));
  }
  const std::string path = override_text.substr(0, equals);
  const std::string value = override_text.substr(equals + 1);
  FATHOM_ASSIGN_OR_RETURN(const FieldPlace place, FindField(path, message));
  const bool is_list = place.field->is_repeated() && !value.empty() && value.front() == '[';
  if (IsString(place.field) && !is_list && !IsQuoted(value)) {
    SetString(place, value);
    return absl::OkStatus();
  }
  return SetFromTextFormat(place, path, value);
}

absl::StatusOr<FieldPlace> FindField(std::string_view path, Message* message) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(path.data(), path.size()), '.');
  std::string walked = "a job";
  for (size_t i = 0;; ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(parts[i]);
    if (field == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no field \"", std::string(path), "\": ", walked, " has no \"",
                       parts[i], "\", only ", FieldNames(message->GetDescriptor())));
    }
    if (i + 1 == parts.size()) return FieldPlace{message, field};
    walked = absl::StrJoin(parts.begin(), parts.begin() + i + 1, ".");
    if (field->is_repeated() || !IsMessage(field)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no field \"", std::string(path), "\": ", walked,
          field->is_repeated() ? " is a list, which is set whole" : " has no fields of its own"));
    }
    message = message->GetReflection()->MutableMessage(message, field);
  }
}

bool FieldPlace::is_set() const {
  const Reflection* reflection = message->GetReflection();
  return field->is_repeated() ? reflection->FieldSize(*message, field) > 0
                              : reflection->HasField(*message, field);
}

std::string FieldPlace::value_text() const {
  std::string text;
  TextFormat::PrintFieldValueToString(*message, field, field->is_repeated() ? 0 : -1, &text);
  return text;
}

bool FieldPlace::is_default() const {
  if (!is_set()) return true;
  std::unique_ptr<Message> unset(message->New());
  return value_text() == FieldPlace{unset.get(), field}.value_text();
}

void FillDefaults(Message* message) {
  const Descriptor* descriptor = message->GetDescriptor();
  const Reflection* reflection = message->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) continue;
    if (IsMessage(field)) {
      FillDefaults(reflection->MutableMessage(message, field));
      continue;
    }
    if (reflection->HasField(*message, field) || !field->has_default_value()) continue;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(message, field, field->default_value_int64());
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(message, field, field->default_value_uint64());
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(message, field, field->default_value_double());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(message, field, field->default_value_bool());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnum(message, field, field->default_value_enum());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection->SetString(message, field, field->default_value_string());
        break;
      default:
        FATHOM_CHECK(false) << "job.proto has a field of a type without defaults: "
                            << field->full_name();
    }
  }
}

std::string FindNonFinite(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  const Reflection* reflection = message.GetReflection();
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE &&
        !std::isfinite(reflection->GetDouble(message, field))) {
      return field->name();
    }
    if (IsMessage(field)) {
      const std::string inner = FindNonFinite(reflection->GetMessage(message, field));
      if (!inner.empty()) return absl::StrCat(field->name(), ".", inner);
    }
  }
  return "";
}

}  // namespace fathom
