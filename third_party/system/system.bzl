"""Finds the libraries that the machine has and names the package of one that is missing.

Debian's places are the default. FATHOM_SYSTEM_PREFIX names another prefix, as a Spack or
Conda environment has: PREFIX/include and PREFIX/lib are searched before Debian's places.
"""

# name: (a header that must exist, a library that must exist or None for headers only,
#        link options, Debian package)
_LIBRARIES = {
    "absl_status": (
        "absl/status/statusor.h",
        "absl_statusor",
        ["-labsl_statusor", "-labsl_status", "-labsl_cord", "-labsl_cordz_info", "-labsl_cord_internal", "-labsl_strings", "-labsl_strings_internal", "-labsl_throw_delegate", "-labsl_raw_logging_internal"],
        "libabsl-dev",
    ),
    "absl_strings": (
        "absl/strings/str_cat.h",
        "absl_strings",
        ["-labsl_str_format_internal", "-labsl_strings", "-labsl_strings_internal", "-labsl_int128", "-labsl_throw_delegate", "-labsl_raw_logging_internal"],
        "libabsl-dev",
    ),
    "boost_context": ("boost/context/fiber.hpp", "boost_context", ["-lboost_context"], "libboost-context-dev"),
    "cblas": ("cblas.h", "openblas", ["-lopenblas"], "libopenblas-openmp-dev"),
    "dnnl": ("dnnl.h", "dnnl", ["-ldnnl"], "libdnnl-dev"),
    "gtest_main": ("gtest/gtest.h", "gtest_main", ["-lgtest_main", "-lgmock", "-lgtest", "-pthread"], "libgtest-dev libgmock-dev"),
    "mpi": ("mpi.h", "mpi", ["-lmpi", "-pthread"], "libopenmpi-dev openmpi-bin"),
    "nlohmann_json": ("nlohmann/json.hpp", None, [], "nlohmann-json3-dev"),
    "protobuf": ("google/protobuf/message.h", "protobuf", ["-lprotobuf", "-pthread"], "libprotobuf-dev"),
    "simdjson": ("simdjson.h", "simdjson", ["-lsimdjson"], "libsimdjson-dev"),
    "xxhash": ("xxhash.h", "xxhash", ["-lxxhash"], "libxxhash-dev"),
    "zlib": ("zlib.h", "z", ["-lz"], "zlib1g-dev"),
    "zstd": ("zstd.h", "zstd", ["-lzstd"], "libzstd-dev"),
}

# Folders below a library folder whose headers no compiler searches by itself: name: folders.
# Debian keeps Open MPI's there.
_HEADER_FOLDERS = {
    "mpi": ["openmpi/include"],
}

def _first_existing(repository_ctx, candidates):
    for candidate in candidates:
        if repository_ctx.path(candidate).exists:
            return candidate
    return None

def _first_existing_folder(repository_ctx, roots, folders, header):
    for root in roots:
        for folder in folders:
            if repository_ctx.path(root + "/" + folder + "/" + header).exists:
                return root + "/" + folder
    return None

def _system_libraries_impl(repository_ctx):
    prefix = repository_ctx.os.environ.get("FATHOM_SYSTEM_PREFIX", "")
    roots = ([prefix] if prefix else []) + ["/usr"]
    triplet = repository_ctx.execute(["gcc", "-dumpmachine"]).stdout.strip()
    include_dirs = []
    for root in roots:
        include_dirs += [root + "/include"]
        include_dirs += [root + "/include/" + triplet] if triplet else []
    library_dirs = []
    for root in roots:
        library_dirs += [root + "/lib", root + "/lib64"]
        library_dirs += [root + "/lib/" + triplet] if triplet else []

    missing = []
    targets = []
    for name, (header, library, linkopts, package) in _LIBRARIES.items():
        found_header = _first_existing(repository_ctx, [d + "/" + header for d in include_dirs])
        own_folder = None
        if not found_header:
            own_folder = _first_existing_folder(repository_ctx, library_dirs, _HEADER_FOLDERS.get(name, []), header)
            found_header = own_folder
        found_library = not library or _first_existing(
            repository_ctx,
            [d + "/lib" + library + suffix for d in library_dirs for suffix in (".so", ".a")],
        )
        if not found_header or not found_library:
            missing.append("%s (%s; Debian: apt-get install %s)" % (name, header, package))
        targets.append((name, linkopts, own_folder))
    if missing:
        fail("system libraries not found under %s: %s. Run ./setup.sh, or set FATHOM_SYSTEM_PREFIX to the prefix that has them." %
             (" or ".join(roots), ", ".join(missing)))

    includes = []
    prefix_linkopts = []
    if prefix:
        # Headers of another prefix are reached through a link inside this repository.
        repository_ctx.symlink(prefix + "/include", "include")
        includes = ["include"]
        for directory in [prefix + "/lib", prefix + "/lib64"]:
            if repository_ctx.path(directory).exists:
                prefix_linkopts += ["-L" + directory, "-Wl,-rpath," + directory]
    elif triplet and repository_ctx.path("/usr/include/%s/cblas.h" % triplet).exists:
        # The compiler searches Debian's multi-architecture folder by itself.
        pass

    lines = ['package(default_visibility = ["//visibility:public"])', ""]
    for name, linkopts, own_folder in targets:
        headers = []
        own_includes = []
        if own_folder:
            # Reached through a link as well.
            repository_ctx.symlink(own_folder, name + "_include")
            headers = ["    hdrs = glob([%r])," % (name + "_include/**/*.h")]
            own_includes = [name + "_include"]
        lines += [
            "cc_library(",
            '    name = "%s",' % name,
        ] + headers + [
            "    includes = %r," % (includes + own_includes),
            "    linkopts = %r," % (prefix_linkopts + linkopts),
            ")",
            "",
        ]
    repository_ctx.file("BUILD", "\n".join(lines))

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    environ = ["FATHOM_SYSTEM_PREFIX"],
    local = True,
    configure = True,
)
