package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Keys of the linearizer, below a prefix that ends with a slash:
//
//	epoch                          the epoch that the store belongs to
//	filled                         the same, once everything that the regions had is in the store
//	retiring                       the name of a region, while its retirement goes on in the epoch that is there
//	dissolving                     in the place of both, while it is found out whether the linearizer may end
//	emptied                        the same, while a recovery goes on that has deleted everything of earlier epochs
//	claims/<agent>/<boot>/<start>  a claim; agent and boot in hex, start with 20 digits
//	folded/<agent>/<boot>          the heads that have what is folded of a boot
//	forgotten/<2 hex digits>       written when heads of a boot are forgotten whose path has a SHA-256 that begins so
type Keys string

// ErrNotAKey: a key that Keys did not write.
var ErrNotAKey = errors.New("not a key of a claim")

func bootPath(b identity.Boot) string {
	return layout.HexText(b.Agent) + "/" + layout.HexText(b.Boot)
}

// Epoch is the key of the epoch.
func (k Keys) Epoch() string { return string(k) + "epoch" }

// Filled is the key of the epoch whose recovery has ended. Where it has another value than the epoch, or none, the store lacks claims.
func (k Keys) Filled() string { return string(k) + "filled" }

// Dissolving is the key of a mark that is there instead of an epoch while a linearizer is being dissolved.
func (k Keys) Dissolving() string { return string(k) + "dissolving" }

// Emptied is the key of the epoch whose recovery has deleted everything of earlier ones, and goes on.
func (k Keys) Emptied() string { return string(k) + "emptied" }

// Retiring is the key of the names of the regions whose retirement somebody has begun in the epoch that is there, or has gone on with in it, with commas
// between them, the last one begun last. Of each of them etcd has everything that was decided there.
func (k Keys) Retiring() string { return string(k) + "retiring" }

// Claims begins the keys of all claims.
func (k Keys) Claims() string { return string(k) + "claims/" }

// Folded begins the keys of the heads of all boots.
func (k Keys) Folded() string { return string(k) + "folded/" }

// Boot begins the keys of a boot's claims.
func (k Keys) Boot(b identity.Boot) string { return k.Claims() + bootPath(b) + "/" }

// Claim is the key of a claim.
func (k Keys) Claim(b identity.Boot, start uint64) string {
	of := k.of(b)
	return of.claim(start)
}

// Heads is the key of the heads that have what is folded of a boot.
func (k Keys) Heads(b identity.Boot) string { return k.Folded() + bootPath(b) }

// Forgottens begins the keys of what says that boots were forgotten.
func (k Keys) Forgottens() string { return string(k) + "forgotten/" }

// Forgotten is the key that changes when the boot's heads are forgotten, or those of some other boots. That there are few such keys
// costs a boot a second look now and then; one for each boot would never go.
func (k Keys) Forgotten(b identity.Boot) string {
	sum := sha256.Sum256([]byte(bootPath(b)))
	return k.Forgottens() + hex.EncodeToString(sum[:1])
}

// bootKeys are the keys of one boot.
type bootKeys struct {
	Keys
	boot identity.Boot
	// from and end are the range of its claims: "0" is what follows the slash that ends their prefix.
	from, end, heads, forgotten string
}

func (k Keys) of(b identity.Boot) bootKeys {
	p := k.Boot(b)
	return bootKeys{Keys: k, boot: b, from: p, end: p[:len(p)-1] + "0", heads: k.Heads(b), forgotten: k.Forgotten(b)}
}

// claim is the key of the claim that begins at start.
func (k *bootKeys) claim(start uint64) string {
	key := k.afterClaim(start)
	return key[:len(key)-len(behind)]
}

// behind makes a key one that follows it, and precedes every other key that does.
const behind = "\x00"

// afterClaim lies behind the key of the claim that begins at start, which it begins with.
func (k *bootKeys) afterClaim(start uint64) string {
	digits := [...]byte{19: '0'}
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i], start = byte('0'+start%10), start/10
	}
	var b strings.Builder
	b.Grow(len(k.from) + len(digits) + len(behind))
	b.WriteString(k.from)
	b.Write(digits[:])
	b.WriteString(behind)
	return b.String()
}

// after lies behind a key and before every other key that follows it.
func after(key string) string { return key + behind }

// ParseClaim reads what Claim writes.
func (k Keys) ParseClaim(key string) (identity.Boot, uint64, error) {
	rest, ok := strings.CutPrefix(key, k.Claims())
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 0 {
		return identity.Boot{}, 0, fmt.Errorf("%w: %q", ErrNotAKey, key)
	}
	b, err := parseBoot(rest[:i])
	if err != nil {
		return identity.Boot{}, 0, fmt.Errorf("%w: %q", ErrNotAKey, key)
	}
	start, err := strconv.ParseUint(rest[i+1:], 10, 64)
	if err != nil || k.Claim(b, start) != key {
		return identity.Boot{}, 0, fmt.Errorf("%w: %q", ErrNotAKey, key)
	}
	return b, start, nil
}

// ParseHeads reads what Heads writes.
func (k Keys) ParseHeads(key string) (identity.Boot, error) {
	rest, ok := strings.CutPrefix(key, k.Folded())
	b, err := parseBoot(rest)
	if !ok || err != nil || k.Heads(b) != key {
		return identity.Boot{}, fmt.Errorf("%w: %q", ErrNotAKey, key)
	}
	return b, nil
}

func parseBoot(s string) (identity.Boot, error) {
	agent, boot, ok := strings.Cut(s, "/")
	a, err := hex.DecodeString(agent)
	o, err2 := hex.DecodeString(boot)
	if !ok || err != nil || err2 != nil {
		return identity.Boot{}, ErrNotAKey
	}
	b := identity.Boot{Agent: string(a), Boot: string(o)}
	return b, b.Validate()
}
