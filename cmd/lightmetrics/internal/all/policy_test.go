package all

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	store "lightmetrics.dev/lightmetrics/services/objectstore"
)

// user is a user in a settings file of the store.
type user struct {
	Name        string `yaml:"name"`
	AccessKeyID string `yaml:"access_key_id"`
	Policy      string `yaml:"policy"`
}

// usersOf reads the users of a settings file.
func usersOf(t *testing.T, text []byte) []user {
	t.Helper()
	var file struct {
		Objectstore struct {
			Users []user `yaml:"users"`
		} `yaml:"objectstore"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Objectstore.Users
}

// TestStoreUsersHoldThePolicy: the users that "lightmetrics all" makes, and those of deploy/settings,
// may do what their services need and nothing else, and a collector passes the probes of store.policy require.
func TestStoreUsersHoldThePolicy(t *testing.T) {
	dir := t.TempDir()
	creds, err := openCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.DataDir = dir
	made, err := yaml.Marshal((&plan{cfg: cfg, creds: creds, file: map[string]section{}}).of(objectstore))
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := os.ReadFile(shippedStore)
	if err != nil {
		t.Fatal(err)
	}
	embedded, err := bucketpolicy.ProviderOf("embedded")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"all": made, "deploy": shipped} {
		t.Run(name, func(t *testing.T) {
			users := usersOf(t, text)
			if len(users) != len(storeUsers) {
				t.Fatalf("%d users, want %d", len(users), len(storeUsers))
			}
			oc := store.DefaultConfig()
			oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = "127.0.0.1:0", "", t.TempDir(), []string{"lightmetrics"}
			for _, u := range users {
				oc.Users = append(oc.Users, store.User{Name: u.Name, AccessKeyID: u.AccessKeyID, Secret: "secret-of-this-test", Policy: u.Policy})
			}
			addr := serveStore(t, oc)
			for service, u := range storeUsers {
				c := s3.DefaultConfig()
				c.Endpoint, c.Bucket, c.PathStyle = "http://"+addr, "lightmetrics", true
				c.AccessKeyID, c.SecretAccessKey = u.name, config.Secret("secret-of-this-test")
				bucket, err := s3.New(t.Context(), c, s3.Options{})
				if err != nil {
					t.Fatal(err)
				}
				o := qualify.Options{RunID: "r", Strict: true, Now: time.Now}
				if _, err := qualify.Role(t.Context(), bucket, embedded, u.roles, o); err != nil {
					t.Errorf("%s: %v", u.name, err)
				}
				if service == ingest {
					if _, err := qualify.Run(t.Context(), bucket, o); err != nil {
						t.Errorf("%s: %v", u.name, err)
					}
				}
			}
		})
	}
}

const shippedStore = "../../../../deploy/settings/objectstore.yaml"

var updateUsers = flag.Bool("update-users", false, "write the policies of deploy/settings/objectstore.yaml")

// TestDeployedUsersHaveThePrintedPolicy: the users in the file are those of "lightmetrics all", with the
// policies that the program makes.
func TestDeployedUsersHaveThePrintedPolicy(t *testing.T) {
	shipped, err := os.ReadFile(shippedStore)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(shipped), "  users:\n")
	want := head + "  users:\n" +
		"    # One for each service, with the least that it needs (\"lmctl bucket-policy --provider embedded --role …\"),\n" +
		"    # and one for lmctl and people. Give each a secret; there is no default.\n"
	for _, service := range slices.Sorted(maps.Keys(storeUsers)) {
		u := storeUsers[service]
		policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: "lightmetrics"}, u.roles...)
		if err != nil {
			t.Fatal(err)
		}
		want += "    - name: " + u.name + "\n      access_key_id: " + u.name + "\n      secret: \"\"\n      policy: |\n" +
			"        " + strings.ReplaceAll(strings.TrimSuffix(string(policy), "\n"), "\n", "\n        ") + "\n"
	}
	if *updateUsers {
		if err := os.WriteFile(shippedStore, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(shipped) {
		t.Error("the users differ; go test ./cmd/lightmetrics/internal/all -run DeployedUsers -update-users writes them")
	}
}

func serveStore(t *testing.T, c store.Config) string {
	t.Helper()
	s, err := store.New(c, store.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }() // ends with the test's context
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-s.Ready()
	return s.Addr()
}
