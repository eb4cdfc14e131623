package layout

import (
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FoldsPrefix has what is folded of the identity linearizer: identities that are settled, by boot.
const FoldsPrefix = "folds/v1/"

const (
	foldHead   = "head.lmf"
	foldPart   = "part-"
	foldSuffix = ".lmf"
)

// FoldHead is the key of the head of what is folded of a boot.
func FoldHead(b identity.Boot) string { return FoldsPrefix + bootDir(b) + foldHead }

// FoldPart is the key of a part that heads of the boot name by the digest of its bytes.
func FoldPart(b identity.Boot, d identity.Digest) string {
	return FoldsPrefix + bootDir(b) + foldPart + d.String() + foldSuffix
}

// ParseFoldHead reads what FoldHead writes.
func ParseFoldHead(key string) (identity.Boot, error) {
	b, name, err := parseFold(key)
	if err != nil || name != foldHead {
		return identity.Boot{}, notAKey(key, "head of folds")
	}
	return b, nil
}

// ParseFoldPart reads what FoldPart writes.
func ParseFoldPart(key string) (identity.Boot, identity.Digest, error) {
	b, name, err := parseFold(key)
	var d identity.Digest
	if err == nil {
		d, err = identity.ParseDigest(strings.TrimSuffix(strings.TrimPrefix(name, foldPart), foldSuffix))
	}
	if err != nil || FoldPart(b, d) != key {
		return identity.Boot{}, identity.Digest{}, notAKey(key, "part of folds")
	}
	return b, d, nil
}

// parseFold gives the boot of a key, and the name behind it.
func parseFold(key string) (identity.Boot, string, error) {
	rest, ok := strings.CutPrefix(key, FoldsPrefix)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 0 {
		return identity.Boot{}, "", notAKey(key, "fold")
	}
	b, err := ParseBoot(BootsPrefix + rest[:i] + ".json")
	if err != nil || bootDir(b) != rest[:i+1] {
		return identity.Boot{}, "", notAKey(key, "fold")
	}
	return b, rest[i+1:], nil
}
