class Comity < Formula
  desc "Collective communication for machine learning"
  homepage "@HOME@"
  version "@VERSION@"
  license "MIT"

  on_macos do
    depends_on arch: :arm64
    on_arm do
      url "@URL@/comity-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256:aarch64-apple-darwin@"
    end
  end

  on_linux do
    on_intel do
      url "@URL@/comity-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:x86_64-unknown-linux-gnu@"
    end
    on_arm do
      url "@URL@/comity-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:aarch64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "bin/comity"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/comity"
    zsh_completion.install "share/zsh/site-functions/_comity"
    fish_completion.install "share/fish/vendor_completions.d/comity.fish"
  end

  test do
    system bin/"comity", "launch", "-n", "2", "--", bin/"comity", "check", "--quick"
  end
end
