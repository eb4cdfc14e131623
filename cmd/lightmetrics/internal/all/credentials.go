package all

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// The secrets of a group: each a file of this name below <data_dir>/credentials.
const (
	storeSecret   = "store-secret"   // of the object store's user for lmctl and people
	foldSecret    = "fold-secret"    // of the reconciler's, which may fold the journal
	ingestSecret  = "ingest-secret"  // of the collector's
	rollupSecret  = "rollup-secret"  // of the rollup worker's
	querySecret   = "query-secret"   // of the query node's
	termSecret    = "term-secret"    // of the coordinator's, which keeps the number of its term
	workerToken   = "worker-token"   // of the services among themselves
	senderToken   = "sender-token"   // of agents
	readerToken   = "reader-token"   // of queries
	operatorToken = "operator-token" // of lmctl

	principalsFile = "principals.yaml"
)

var secrets = []string{storeSecret, foldSecret, ingestSecret, rollupSecret, querySecret, termSecret, workerToken, senderToken, readerToken, operatorToken}

// credentials is the folder of the secrets, 0700.
type credentials struct {
	dir string
	// made are the names of the secrets that this start made.
	made []string
}

// openCredentials creates the secrets that are missing. Existing ones are never changed, because
// agents and people have copies.
func openCredentials(dataDir string) (*credentials, error) {
	c := &credentials{dir: filepath.Join(dataDir, "credentials")}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	for _, name := range secrets {
		// Two texts of 26 base32 characters are 260 random bits.
		made, err := writeOnce(c.path(name), []byte(rand.Text()+rand.Text()+"\n"))
		if err != nil {
			return nil, err
		}
		if made {
			c.made = append(c.made, name)
		}
	}
	text, err := c.principals()
	if err != nil {
		return nil, err
	}
	_, err = writeOnce(c.path(principalsFile), text)
	return c, err
}

func (c *credentials) path(name string) string { return filepath.Join(c.dir, name) }

// read gives a secret.
func (c *credentials) read(name string) (string, error) {
	b, err := os.ReadFile(c.path(name))
	return string(bytes.TrimSpace(b)), err
}

// principals makes the file of principals for the tokens. It is written once. From then on it belongs
// to the operator, who adds principals and changes tokens.
func (c *credentials) principals() ([]byte, error) {
	type principal struct {
		Name        string   `yaml:"name"`
		TokenSHA256 string   `yaml:"token_sha256"`
		Roles       []string `yaml:"roles,flow"`
		Agents      []string `yaml:"agents,omitempty,flow"`
		Workers     []string `yaml:"workers,omitempty,flow"`
	}
	list := []struct {
		token string
		principal
	}{
		{senderToken, principal{Name: "agents", Roles: []string{"sender"}, Agents: []string{"*"}}},
		{readerToken, principal{Name: "reader", Roles: []string{"reader"}}},
		{operatorToken, principal{Name: "operator", Roles: []string{"operator", "reader"}}},
		{workerToken, principal{Name: "services", Roles: []string{"worker"}, Workers: []string{"*"}}},
	}
	out := make([]principal, 0, len(list))
	for _, p := range list {
		token, err := c.read(p.token)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(token))
		p.TokenSHA256 = hex.EncodeToString(sum[:])
		out = append(out, p.principal)
	}
	text, err := yaml.Marshal(map[string]any{"principals": out})
	return append([]byte("# Who may do what at the services of this machine; docs/guide/access.md explains it.\n"+
		"# Written by the first start of \"lightmetrics all\", and never again: it is yours to change.\n"), text...), err
}

// writeOnce creates a file, 0600, if it is absent, and reports whether it did. The file is complete or
// does not exist.
func writeOnce(path string, text []byte) (bool, error) {
	// Lstat and not Stat: a link that leads nowhere was put there by somebody, and must not be replaced.
	if _, err := os.Lstat(path); err == nil {
		return false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, writeFile(path, text)
}

// writeFile replaces a file durably by one with these bytes, 0600.
func writeFile(path string, text []byte) error {
	if err := vfs.ReplaceFile(vfs.OS, path, text); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
