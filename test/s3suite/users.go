package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// The suite makes its users by versitygw's own command, which it starts as ./versitygw. This program stands in for it: under
// that name it asks the one that runs the suite to write the user into the store's users_file.

// adminName is the name under which this program is the command.
const adminName = "versitygw"

// adminURL is the environment variable that tells the command where to ask.
const adminURL = "S3SUITE_ADMIN"

// policies are those of the suite's roles. An administrator has none, and may do everything.
var policies = map[string]string{
	"admin":    "",
	"user":     `{"Statement":[{"Effect":"Allow","Action":"s3:ListAllMyBuckets","Resource":"*"}]}`,
	"userplus": `{"Statement":[{"Effect":"Allow","Action":["s3:ListAllMyBuckets","s3:CreateBucket"],"Resource":"*"}]}`,
}

// users are those that the suite has made.
type users struct {
	file, dir string // of the store, and of the suite
	stop      func()

	mu   sync.Mutex
	list []map[string]string
}

// serveUsers takes the suite's users and writes them into a file.
func serveUsers(file string) (*users, error) {
	u := &users{file: file, dir: filepath.Join(filepath.Dir(file), "suite")}
	if err := u.write(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(u.dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(self, filepath.Join(u.dir, adminName)); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if err := os.Setenv(adminURL, "http://"+l.Addr().String()); err != nil {
		return nil, err
	}
	server := &http.Server{Handler: u}
	go server.Serve(l) // ends with Close
	u.stop = func() { server.Close() }
	return u, nil
}

// ServeHTTP makes a user.
func (u *users) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	policy, ok := policies[r.FormValue("role")]
	if !ok {
		http.Error(w, "no such role", http.StatusBadRequest)
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	key := r.FormValue("access")
	u.list = append(u.list, map[string]string{"name": key, "access_key_id": key, "secret": r.FormValue("secret"), "policy": policy})
	if err := u.write(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	tlsfile.Refresh()
}

func (u *users) write() error {
	text, err := yaml.Marshal(map[string]any{"users": u.list})
	if err != nil {
		return err
	}
	// The markers say that the file is whole, so that it counts at once.
	return os.WriteFile(u.file, append(append([]byte("---\n"), text...), "...\n"...), 0o600)
}

// admin is the command: admin [flags] create-user -a KEY -s SECRET -r ROLE. It knows nothing else.
func admin(args []string) int {
	fs := flag.NewFlagSet(adminName, flag.ContinueOnError)
	for _, name := range []string{"a", "s", "er"} {
		fs.String(name, "", "")
	}
	fs.Bool("allow-insecure", false, "")
	if len(args) == 0 || args[0] != "admin" || fs.Parse(args[1:]) != nil || fs.Arg(0) != "create-user" {
		fmt.Fprintln(os.Stderr, "only create-user is known")
		return 2
	}
	user := flag.NewFlagSet("create-user", flag.ContinueOnError)
	key, secret, role := user.String("a", "", ""), user.String("s", "", ""), user.String("r", "", "")
	if user.Parse(fs.Args()[1:]) != nil {
		return 2
	}
	resp, err := http.PostForm(os.Getenv(adminURL), url.Values{"access": {*key}, "secret": {*secret}, "role": {*role}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(os.Stderr, resp.Body)
		return 1
	}
	return 0
}
