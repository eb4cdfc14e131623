package objectstore

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// noKey is the value of encryption.current that stores new objects as they are.
const noKey = "none"

// Encryption is how the bodies of objects are encrypted at rest.
type Encryption struct {
	Keys        []EncryptionKey `koanf:"keys" help:"list in the file: id, and file or command; a version of the key is kept until nothing is encrypted with it"`
	Current     string          `koanf:"current" help:"id of the key that encrypts new objects; none: they are stored as they are"`
	RewriteRate config.Bytes    `koanf:"rewrite_rate" help:"bytes a second at which objects are encrypted again that are not encrypted with the current key; 0: never" needs:"current"`
}

// EncryptionKey is a version of the key. Its secret has 32 bytes, in hexadecimal or base64, on one line.
type EncryptionKey struct {
	ID string `koanf:"id"`
	// File is readable by its owner alone.
	File string `koanf:"file" check:"file"`
	// Command prints the secret: a program, such as a key service's client, and its arguments. It has 10 seconds.
	Command config.Command `koanf:"command"`
}

func (c Encryption) check() (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("encryption."+format, args...))
	}
	ids := map[string]bool{}
	for _, k := range c.Keys {
		switch {
		case !seal.ValidID(k.ID) || k.ID == noKey:
			bad("keys: %q is no id: want 1 to %d letters, digits, dots, dashes and underlines, and not %q", k.ID, seal.MaxID, noKey)
		case ids[k.ID]:
			bad("keys: %q is there twice", k.ID)
		case (k.File == "") == (len(k.Command) == 0):
			bad("keys: %q: want one of file and command", k.ID)
		}
		ids[k.ID] = true
	}
	if len(c.Keys) > 0 && c.Current == "" {
		bad("current: is needed with keys; %q stores new objects as they are", noKey)
	}
	if c.Current != "" && c.Current != noKey && !ids[c.Current] {
		bad("current: %q is not among the keys", c.Current)
	}
	return errs
}

// load reads the secrets; nil without settings.
func (c Encryption) load(ctx context.Context) (*seal.Keys, error) {
	if len(c.Keys) == 0 && c.Current == "" {
		return nil, nil
	}
	var list []*seal.Key
	for _, k := range c.Keys {
		key, err := seal.Source{ID: k.ID, File: k.File, Command: k.Command}.Load(ctx)
		if err != nil {
			return nil, fmt.Errorf("encryption: %w", err)
		}
		list = append(list, key)
	}
	current := c.Current
	if current == noKey {
		current = ""
	}
	return seal.NewKeys(current, list...)
}

// sayMissingKeys logs which keys are needed and were not given.
func (s *Service) sayMissingKeys(eng *engine.Engine) {
	for _, u := range eng.KeyUsage() {
		if !u.Given && u.Bytes > 0 {
			s.deps.Telemetry.Log.Error("objects are encrypted with a key that was not given, and cannot be read",
				"key", u.Key, "check", u.Check, "records", u.Records, "bytes", u.Bytes)
		}
	}
}

// resealInterval is the time between two looks for what is not encrypted with the current key. After a look that could do
// nothing, because of damage say, it doubles up to resealIdle: a look reads the whole index.
const (
	resealInterval = time.Minute
	resealIdle     = time.Hour
	// resealAgain is the time to the next look after one that could do what it found: reclaiming may have moved some of that
	// meanwhile, which then has the old key still.
	resealAgain = time.Second
)

// leastBurst is what may be written at once, bytes: the largest body in the log.
const leastBurst = 4 << 20

// reseal encrypts with the current key what is not, at rewrite_rate.
func (s *Service) reseal(ctx context.Context, eng *engine.Engine, m *metrics) error {
	bytes := int(s.cfg.Encryption.RewriteRate)
	if bytes == 0 {
		return nil
	}
	limit := rate.NewLimiter(rate.Limit(bytes), max(bytes, leastBurst))
	pace := func(ctx context.Context, n int64) error {
		err := limit.WaitN(ctx, int(n))
		if err == nil {
			m.rewritten.Add(float64(n))
		}
		return err
	}
	for wait := resealInterval; ; {
		next := wait
		// What needs a key that was not given is left out: only a restart brings the key.
		if st := eng.Stats(); st.StaleBytes > st.LockedBytes && !st.Poisoned && !st.Full && !st.Uncertain {
			left := st.StaleBytes - st.LockedBytes
			s.deps.Telemetry.Log.Info("encrypting objects with the current key", "bytes", left)
			out, err := eng.Reseal(ctx, pace)
			if out.Records > 0 {
				wait = resealInterval
			} else {
				wait = min(2*wait, resealIdle)
			}
			if next = wait; out.Records > 0 && out.Left == 0 && err == nil {
				next = resealAgain
			}
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.deps.Telemetry.Log.Error("objects could not be encrypted with the current key; tried again later", "error", err)
			default:
				s.deps.Telemetry.Log.Info("encrypted objects with the current key", "records", out.Records, "bytes", out.Bytes, "left_records", out.Left, "why", errText(out.First))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// KeyReport is the answer of the admin path /keys.
type KeyReport struct {
	Keys []engine.KeyUsage `json:"keys"`
	// RewriteBytes are those that are not encrypted with the current key, and will be.
	RewriteBytes int64 `json:"rewrite_bytes"`
}

func (s *Service) keysRoute(eng *engine.Engine) web.Route {
	return web.Route{Pattern: "GET /keys", About: "how much is encrypted with each version of the key", Roles: []web.Role{web.RoleOperator},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			out := KeyReport{Keys: eng.KeyUsage()}
			if out.Keys == nil {
				out.Keys = []engine.KeyUsage{}
			}
			if s.cfg.Encryption.RewriteRate > 0 {
				out.RewriteBytes = eng.StaleBytes()
			}
			web.WriteJSON(w, http.StatusOK, out)
		})}
}
