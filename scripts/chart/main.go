// Renders a Helm chart as `helm template` does, for machines without Helm: the same template
// language (text/template), the same functions (sprig), the same merging of values.
//
//	chart RELEASE NAMESPACE CHART API-VERSIONS [VALUES…]
//
// Not in it: dependencies, hooks, lookup, and the schema of values.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

type values = map[string]interface{}

// versions are the APIs of a cluster, as .Capabilities.APIVersions.
type versions []string

func (all versions) Has(wanted string) bool {
	for _, each := range all {
		if each == wanted {
			return true
		}
	}
	return false
}

func main() {
	if len(os.Args) < 5 {
		fail(fmt.Errorf("usage: chart RELEASE NAMESPACE CHART API-VERSIONS [VALUES…]"))
	}
	given := values{}
	for _, path := range append([]string{filepath.Join(os.Args[3], "values.yaml")}, os.Args[5:]...) {
		merge(given, read(path))
	}
	about := read(filepath.Join(os.Args[3], "Chart.yaml"))
	dot := values{
		"Values":       given,
		"Release":      values{"Name": os.Args[1], "Namespace": os.Args[2], "Service": "Helm", "IsInstall": true, "Revision": 1},
		"Chart":        titled(about),
		"Capabilities": values{"APIVersions": versions(strings.Fields(os.Args[4]))},
	}
	render(os.Args[3], fmt.Sprint(about["name"]), dot)
}

func render(chart, name string, dot values) {
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(functions(all))
	var sources []string
	err := filepath.WalkDir(filepath.Join(chart, "templates"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fail(err)
		source := filepath.Join(name, strings.TrimPrefix(path, filepath.Clean(chart)+"/"))
		_, err = all.New(source).Parse(string(text))
		fail(err)
		sources = append(sources, source)
		return nil
	})
	fail(err)
	for _, source := range sources {
		if base := filepath.Base(source); strings.HasPrefix(base, "_") {
			continue
		}
		var out strings.Builder
		dot["Template"] = values{"Name": source, "BasePath": name + "/templates"}
		fail(all.ExecuteTemplate(&out, source, dot))
		show(source, strings.ReplaceAll(out.String(), "<no value>", ""))
	}
}

func show(source, text string) {
	if strings.HasSuffix(source, ".txt") {
		return
	}
	for _, document := range strings.Split("\n"+text, "\n---") {
		if strings.TrimSpace(document) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", source, strings.Trim(document, "\n"))
		}
	}
}

func functions(all *template.Template) template.FuncMap {
	found := sprig.TxtFuncMap()
	delete(found, "env")
	delete(found, "expandenv")
	found["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		fail(err)
		return strings.TrimSuffix(string(text), "\n")
	}
	found["include"] = func(name string, dot interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, dot)
		return out.String(), err
	}
	found["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return value, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	return found
}

// merge puts the later values over the earlier ones; a null takes a value away.
func merge(into, from values) {
	for name, value := range from {
		inner, ok := value.(values)
		before, had := into[name].(values)
		switch {
		case value == nil:
			delete(into, name)
		case ok && had:
			merge(before, inner)
		default:
			into[name] = value
		}
	}
}

func read(path string) values {
	text, err := os.ReadFile(path)
	fail(err)
	found := values{}
	fail(yaml.Unmarshal(text, &found))
	return found
}

// titled has the fields of Chart.yaml as .Chart names them.
func titled(about values) values {
	found := values{}
	for name, value := range about {
		found[strings.ToUpper(name[:1])+name[1:]] = value
	}
	return found
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}
