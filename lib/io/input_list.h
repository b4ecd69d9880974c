// The files that arguments of a command line stand for: names, folders and patterns.
#pragma once

#include <string>
#include <vector>

namespace mt {

// Replaces, in the order given, each argument by the files that it means:
//   "-"                     itself (stdin);
//   the name of a folder    the files in it and in the folders below whose name ends with one of
//                           `endings`, in order of the bytes of their paths; names that begin with
//                           a dot are left out, and no folder is read twice (links may form loops);
//   any other name          itself;
//   what is no name but has *, ? or [   a pattern, the names that match in order of their bytes,
//                           each treated as above.
// Throws EnvironmentError naming the argument if there is no such file or folder, nothing matches,
// or a folder has no such file or cannot be read.
[[nodiscard]] std::vector<std::string> expand_inputs(const std::vector<std::string>& arguments,
                                                     const std::vector<std::string>& endings);

}  // namespace mt
