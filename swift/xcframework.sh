#!/bin/sh
# Make CComity.xcframework, for programs that have libcomity in them and load none: swift/xcframework.sh [OUTPUT]
#
# Needs a Mac with Xcode and Rust. It was written from Xcode's manual, and was not run on Apple hardware. In the package's manifest it
# takes the place of the target CComity: .binaryTarget(name: "CComity", path: "CComity.xcframework").
set -eu
cd "$(dirname "$0")/.."
out=${1:-target/CComity.xcframework}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for target in aarch64-apple-darwin x86_64-apple-darwin; do
    rustup target add "$target"
    cargo build --release -p comity-c --target "$target"
done
lipo -create target/aarch64-apple-darwin/release/libcomity_c.a target/x86_64-apple-darwin/release/libcomity_c.a \
    -output "$work/libcomity.a"
mkdir "$work/include"
cp crates/comity-c/include/comity.h "$work/include/functions.h"
cp swift/Sources/CComity/include/module.modulemap "$work/include"
{
    echo '#define COMITY_LINKED'
    cat swift/Sources/CComity/include/load.h
} > "$work/include/load.h"
rm -rf "$out"
xcodebuild -create-xcframework -library "$work/libcomity.a" -headers "$work/include" -output "$out"
echo "made $out"
