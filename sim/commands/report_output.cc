#include "sim/commands/report_output.h"

#include "absl/strings/str_cat.h"
#include "sim/commands/output.h"
#include "sim/report/report_json.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

absl::Status WritePage(const std::string& path, const google::protobuf::Message& report,
                       const PageParts& others) {
  const auto page = HtmlPage(report, others);
  return page.ok() ? WriteFile(path, *page) : page.status();
}

void ReportOutput::AddJson(OptionParser* options) {
  options->AddFlag({"--json", "", "print the report as JSON instead of the table"}, &json_);
}

void ReportOutput::AddFiles(OptionParser* options, const Files& files) {
  has_files_ = true;
  options_ = options;
  AddJson(options);
  const auto file = [&](const char* name, const std::string& help, std::string* path) {
    options->Add({name, "FILE", help}, path).file = FileUse::kWritten;
  };
  file("--json-file", "write the report as JSON, too; - is standard output, without a table",
       &json_file_);
  if (files.rows_help != nullptr) {
    file("--csv", absl::StrCat(files.rows_help, "; - is standard output, without a table"), &csv_);
  }
  if (files.has_page) {
    file("--html", "the report as a page of charts and tables for a browser", &html_);
  }
}

void ReportOutput::AddTerminal(OptionParser* options, const std::string& quiet_help) {
  options->AddFlag({"--quiet", "", quiet_help}, &quiet_);
  options->Add({"--color", "auto|always|never", "headings in bold [auto]"}, &color_);
}

absl::Status ReportOutput::Check(const std::vector<RunFile>& others) {
  std::vector<RunFile> files;
  if (json_) files.push_back({"--json", "-", FileUse::kWritten});
  files.insert(files.end(), options_->files().begin(), options_->files().end());
  files.insert(files.end(), others.begin(), others.end());
  for (const RunFile& file : files) {
    is_stdout_taken_ |= file.use == FileUse::kWritten && IsStandardOutput(file.path);
  }
  return CheckRunFiles(files);
}

ExitStatus ReportOutput::Print(const std::string& command,
                               const google::protobuf::Message& report, const Texts& texts) const {
  absl::Status status;
  if (!html_.empty()) status = WritePage(html_, report, texts.page_parts);
  if (status.ok() && !csv_.empty() && texts.rows != nullptr) status = WriteFile(csv_, texts.rows());
  std::string json;
  if (status.ok() && (json_ || !json_file_.empty())) {
    auto text = ToJson(report);
    status = text.status();
    if (text.ok()) json = *std::move(text);
  }
  if (status.ok() && !json_file_.empty()) status = WriteFile(json_file_, json);
  if (!status.ok()) return Fail(command, status);
  if (json_) return WriteStdout(json) ? kDone : kBadInput;
  if (is_stdout_taken_ || (quiet_ && has_files_)) return kDone;
  return WriteStdout(texts.table(UseColor(color_))) ? kDone : kBadInput;
}

}  // namespace kvblocks::sim
