package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
)

// permissionsPage is the guide with the tables of who may do what in the bucket.
func permissionsPage(root string) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guide/permissions.md"))
	if err != nil {
		return nil, err
	}
	for name, table := range map[string]string{"roles": roleTables(), "rules": ruleTable()} {
		marked := regexp.MustCompile(`(?s)(<!-- docgen: ` + name + ` -->\n).*?(<!-- end -->)`)
		if !marked.Match(page) {
			return nil, fmt.Errorf("permissions.md has no place for the table %s", name)
		}
		page = marked.ReplaceAll(page, []byte("${1}\n"+table+"\n${2}"))
	}
	return page, nil
}

func roleTables() string {
	var b strings.Builder
	b.WriteString("| Role | Keys | May | For |\n|---|---|---|---|\n")
	for _, r := range bucketpolicy.Roles {
		for _, g := range bucketpolicy.Grants(r) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r, keyNames(g.Keys), opNames(g.Ops), g.Why)
		}
	}
	return b.String()
}

func ruleTable() string {
	var b strings.Builder
	b.WriteString("| Keys | Refused | To | Because |\n|---|---|---|---|\n")
	for _, r := range bucketpolicy.Refusals() {
		who := "everybody"
		if len(r.Except) > 0 {
			who = "all but " + bucketpolicy.Names(r.Except)
		}
		what := opNames(r.Ops)
		if r.Copies {
			what += ", copy"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", keyNames(r.Keys), what, who, r.Why)
	}
	return b.String()
}

func keyNames(keys []string) string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = "`" + k + "`"
		if k == "" {
			out[i] = "every key"
		}
	}
	return strings.Join(out, ", ")
}

func opNames(ops bucketpolicy.Op) string {
	var out []string
	for _, o := range bucketpolicy.Ops {
		if ops&o != 0 {
			out = append(out, o.String())
		}
	}
	return strings.Join(out, ", ")
}
